// Copy the text of an element. Browsers allow it on https and on this machine only.
(function () {
    "use strict";

    if (!navigator.clipboard) {
        return;
    }
    document.querySelectorAll("[data-copy]").forEach(function (button) {
        button.hidden = false;
        button.addEventListener("click", function () {
            var text = document.querySelector(button.dataset.copy).textContent;

            navigator.clipboard.writeText(text).then(function () {
                button.textContent = "Copied";
            });
        });
    });
}());
