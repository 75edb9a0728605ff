// Flower's page of a task: a link to the run of the same id, if there is one.
(function () {
    "use strict";

    var url = document.currentScript.dataset.run;
    var header = document.querySelector("#task-page .detail-actions, #task-page .page-header");

    if (!header) {
        return;
    }
    fetch(location.origin + url, {credentials: "same-origin"})
        .then(function (response) {
            return response.ok ? response.json() : {url: null};
        })
        .then(function (answer) {
            var link = document.createElement("a");

            if (answer.url) {
                link.className = "btn btn-outline-secondary";
                link.href = answer.url;
                link.textContent = "Run of the schedule";
                header.prepend(link);
            }
        })
        .catch(function () {
            // The page of Flower works without the database of the schedules.
        });
}());
