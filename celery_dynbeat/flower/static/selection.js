// Check boxes of a table: select all, the number of selected rows, and buttons that need one.
(function () {
    "use strict";

    document.querySelectorAll("form[data-selection]").forEach(function (form) {
        var all = form.querySelector("[data-select-all]");
        var count = form.querySelector("[data-selected-count]");
        var boxes = Array.prototype.slice.call(form.querySelectorAll("td.db-check input"));
        var buttons = form.querySelectorAll("[data-needs-selection]");

        function update() {
            var selected = boxes.filter(function (box) { return box.checked; }).length;

            all.checked = selected > 0 && selected === boxes.length;
            all.indeterminate = selected > 0 && selected < boxes.length;
            count.textContent = selected + " selected:";
            buttons.forEach(function (button) {
                button.disabled = selected === 0;
            });
            boxes.forEach(function (box) {
                box.closest("tr").classList.toggle("db-selected", box.checked);
            });
        }

        if (!all) {
            return;
        }
        all.hidden = false;
        all.addEventListener("change", function () {
            boxes.forEach(function (box) { box.checked = all.checked; });
            update();
        });
        form.addEventListener("change", update);
        // A browser restores the boxes when the viewer comes back to the page.
        window.addEventListener("pageshow", update);
        update();
    });
}());
