// The marks of a chart with the keyboard, and their titles at once under the pointer or the focus.
(function () {
    "use strict";

    var STEPS = {ArrowLeft: -1, ArrowRight: 1};
    // Pixels between a mark and its title, and between a title and the edge of the window.
    var DISTANCE = 6;
    var tooltip = document.createElement("div");
    var shownMark = null;

    // One mark of a chart, or the label of a row, is a tab stop. The arrow keys reach the others,
    // so that a chart of 5,000 runs is not 5,000 tab stops.
    function marksAround(element) {
        var container = element.closest(".dynbeat-row, .dynbeat-chart, .dynbeat-strip");

        return container ? Array.prototype.slice.call(container.querySelectorAll("a.dynbeat-mark")) : [];
    }

    function moveFocus(event) {
        var step = STEPS[event.key];
        var marks = step ? marksAround(event.target) : [];
        var index = marks.indexOf(event.target);
        // From the label of a row: the newest mark to the left, the oldest to the right.
        var next = index < 0 ? (step > 0 ? 0 : marks.length - 1) : index + step;

        if (marks[next]) {
            event.preventDefault();
            marks[next].focus();
        }
    }

    // The browser shows a title element after a second, and never for the focus. The label keeps
    // the name of the mark for screen readers.
    function titleOf(mark) {
        var title = mark.querySelector(":scope > title");

        if (title) {
            mark.setAttribute("aria-label", title.textContent);
            title.remove();
        }
        return mark.getAttribute("aria-label");
    }

    function show(mark) {
        var text = titleOf(mark);
        var box = (mark.querySelector(".dynbeat-cell, .dynbeat-dot") || mark).getBoundingClientRect();
        var left, top;

        if (!text) {
            return;
        }
        shownMark = mark;
        tooltip.textContent = text;
        tooltip.hidden = false;
        left = box.left + box.width / 2 - tooltip.offsetWidth / 2;
        left = Math.min(left, document.documentElement.clientWidth - tooltip.offsetWidth - DISTANCE);
        top = box.top - tooltip.offsetHeight - DISTANCE;
        tooltip.style.left = Math.max(left, DISTANCE) + "px";
        tooltip.style.top = (top < DISTANCE ? box.bottom + DISTANCE : top) + "px";
    }

    function hide() {
        shownMark = null;
        tooltip.hidden = true;
    }

    function showTarget(event) {
        var mark = event.target.closest(".dynbeat-mark");

        if (mark) {
            show(mark);
        }
    }

    tooltip.className = "dynbeat-tooltip";
    tooltip.setAttribute("aria-hidden", "true");
    hide();
    document.body.appendChild(tooltip);

    document.addEventListener("keydown", function (event) {
        if (event.key === "Escape") {
            hide();
        } else {
            moveFocus(event);
        }
    });
    document.addEventListener("pointerover", showTarget);
    document.addEventListener("focusin", showTarget);
    document.addEventListener("pointerout", hide);
    document.addEventListener("focusout", hide);
    // The browser scrolls to a mark that gets the focus.
    document.addEventListener("scroll", function () {
        if (shownMark) {
            show(shownMark);
        }
    }, true);
}());
