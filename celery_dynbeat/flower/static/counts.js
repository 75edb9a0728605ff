// Write the numbers into the chips above a list, after the page is shown.
(function () {
    "use strict";

    var chips = document.querySelector("[data-counts]");

    if (!chips) {
        return;
    }
    fetch(location.origin + chips.dataset.counts, {credentials: "same-origin", headers: {"X-Requested-With": "fetch"}})
        .then(function (response) {
            if (!response.ok || response.redirected) {
                throw new Error(response.status);
            }
            return response.json();
        })
        .then(function (counts) {
            chips.querySelectorAll("[data-count]").forEach(function (element) {
                element.textContent = counts[element.dataset.count] || "";
            });
        })
        .catch(function () {
            // The chips are links without their numbers, too.
        });
}());
