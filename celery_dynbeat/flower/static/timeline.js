// Drag the chart of the timeline to move its window. The links "Earlier" and "Later" do the same.
(function () {
    "use strict";

    // Pixels: a shorter move is a click on a mark.
    var THRESHOLD = 8;
    var card = document.getElementById("db-timeline");
    var chart = card && card.querySelector(".db-timeline-chart");
    var start = null;
    var moved = 0;

    if (!chart) {
        return;
    }

    function show(shift) {
        var since = new Date(card.dataset.since).getTime();
        var until = new Date(card.dataset.until).getTime();
        var url = new URL(location.href);

        ["window", "bin"].forEach(function (name) {
            url.searchParams.delete(name);
        });
        url.searchParams.set("since", new Date(since + shift).toISOString());
        url.searchParams.set("until", new Date(until + shift).toISOString());
        location.assign(url);
    }

    chart.addEventListener("pointerdown", function (event) {
        if (event.button === 0 && event.pointerType !== "touch") {
            start = event.clientX;
            moved = 0;
        }
    });
    document.addEventListener("pointermove", function (event) {
        if (start === null) {
            return;
        }
        moved = event.clientX - start;
        chart.classList.toggle("db-dragged", Math.abs(moved) > THRESHOLD);
        chart.style.transform = Math.abs(moved) > THRESHOLD ? "translateX(" + moved + "px)" : "";
    });
    document.addEventListener("pointerup", function () {
        var length = new Date(card.dataset.until).getTime() - new Date(card.dataset.since).getTime();

        if (start === null) {
            return;
        }
        start = null;
        if (Math.abs(moved) > THRESHOLD) {
            show(-moved / chart.clientWidth * length);
        }
    });
    // A link under the pointer is not a click at the end of a move, and is not dragged itself.
    chart.addEventListener("click", function (event) {
        if (Math.abs(moved) > THRESHOLD) {
            event.preventDefault();
            event.stopPropagation();
        }
    }, true);
    chart.addEventListener("dragstart", function (event) {
        event.preventDefault();
    });
}());
