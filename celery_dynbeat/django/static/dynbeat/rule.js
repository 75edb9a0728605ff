// <dynbeat-rule name="rule" value="0 9 * * mon-fri">: a field of a form with the text of a rule.
//
// Presets write the text, which "Own rule" shows. A rule that no preset can write stays as it is. A
// textarea inside the element is the field of a page without scripts; its text is the value.
//
//   format="json"       the value is the JSON of Trigger.to_json(); so is it if it was JSON
//   preview-url         answers a POST of the form's fields with
//                       {description, fire_times: [text], notes: [text], error: text}
//   zone                the time zone of rules without one, in which an instant is shown
//   data-labels         JSON: other texts for LABELS
(function () {
    "use strict";

    const LABELS = {
        at: "at", custom: "Own rule", daily: "Every day", days: "Days of the week",
        every: "Every", hours: "hours", last: "last day", minutes: "minutes", monthDay: "on day",
        monthly: "Every month", never: "It never fires.", next: "Next", number: "Number",
        once: "Once", preset: "How often", rule: "Rule", seconds: "seconds", unavailable: "There is no preview.",
        unit: "Unit", unitDays: "days", weekdays: "Monday to Friday", weekly: "Every week",
        zone: "Time zone", zoneHint: "default"
    };
    const PRESETS = ["every", "daily", "weekdays", "weekly", "monthly", "once", "custom"];
    const SHOWN = {
        every: ["count", "unit"], daily: ["time", "zone"], weekdays: ["time", "zone"],
        weekly: ["days", "time", "zone"], monthly: ["monthDay", "time", "zone"],
        once: ["instant", "zone"], custom: ["rule"]
    };
    const DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    const WORKDAYS = "mon-fri";
    const ZONE = /^(?:CRON_)?TZ=(\S+)\s+/i;
    const CRON = /^([0-5]?\d) ([01]?\d|2[0-3]) (\*|[12]?\d|3[01]|L) \* (\*|[a-z,-]+)$/i;
    const EVERY = /^(?:PT(\d{1,6})([SMH])|P(\d{1,6})(D)|(\d{1,6})\s*([smhd]))$/i;
    const ONCE = /^(\d{4}-\d\d-\d\dT\d\d:\d\d)(?::00)?(Z?)$/;
    const EXAMPLES = "30 9 * * mon-fri; PT10S; 2026-12-24T18:00";
    const DELAY = 300;

    // The wall time of an instant in a zone, such as 2026-12-24T18:00.
    function wallTime(instant, zone) {
        const shown = new Date(instant).toLocaleString("sv-SE", {timeZone: zone});
        return shown.slice(0, 16).replace(" ", "T");
    }

    // The choices that write this text: {preset, ...}. An instant is shown in ``ownZone``.
    function parse(text, ownZone) {
        const zone = (ZONE.exec(text) || [])[1] || "";
        const rule = text.trim().replace(ZONE, "");
        let match = EVERY.exec(rule);

        if (match && (!zone || (match[4] || match[6] || "").toUpperCase() === "D")) {
            const unit = (match[2] || match[4] || match[6]).toUpperCase();
            return {preset: "every", count: match[1] || match[3] || match[5], unit, zone};
        }
        match = ONCE.exec(rule);
        if (match && !(zone && match[2])) {
            return match[2] && ownZone
                ? {preset: "once", instant: wallTime(rule, ownZone), zone: ""}
                : {preset: "once", instant: match[1], zone: match[2] ? "UTC" : zone};
        }
        match = CRON.exec(rule);
        if (!match) {
            return {preset: "custom"};
        }
        const time = match[2].padStart(2, "0") + ":" + match[1].padStart(2, "0");
        const days = match[4].toLowerCase();
        if (match[3] !== "*") {
            const monthDay = match[3].toUpperCase();
            return days === "*" && monthDay !== "0"
                ? {preset: "monthly", monthDay, time, zone} : {preset: "custom"};
        }
        if (days === "*" || days === WORKDAYS) {
            return {preset: days === "*" ? "daily" : "weekdays", time, zone};
        }
        return days.split(",").every((day) => DAYS.includes(day))
            ? {preset: "weekly", days: days.split(","), time, zone} : {preset: "custom"};
    }

    // The kind, the rule without its zone, and the zone; null while a choice is incomplete.
    function write(chosen) {
        const {preset, zone} = chosen;
        const [hour, minute] = (chosen.time || "").split(":").map(Number);
        const cron = (day, weekdays) => ["cron", `${minute} ${hour} ${day} * ${weekdays}`, zone];

        if (preset === "every") {
            const count = /^[1-9]\d{0,5}$/.test(chosen.count) ? chosen.count : null;
            const spec = chosen.unit === "D" ? `P${count}D` : `PT${count}${chosen.unit}`;
            return count && ["every", spec, chosen.unit === "D" ? zone : ""];
        }
        if (preset === "once") {
            return chosen.instant ? ["once", chosen.instant.slice(0, 16), zone] : null;
        }
        if (!chosen.time) {
            return null;
        }
        if (preset === "weekly") {
            return chosen.days.length ? cron("*", chosen.days.join(",")) : null;
        }
        return preset === "monthly" ? cron(chosen.monthDay, "*")
            : cron("*", preset === "weekdays" ? WORKDAYS : "*");
    }

    function asText([kind, spec, zone]) {
        return zone ? `${kind === "cron" ? "CRON_TZ" : "TZ"}=${zone} ${spec}` : spec;
    }

    function asJson([kind, spec, zone]) {
        return JSON.stringify(zone ? {kind, spec, timezone: zone} : {kind, spec});
    }

    // The text of a value, which can be the JSON of a simple rule.
    function textOf(value) {
        try {
            const rule = JSON.parse(value);
            const isSimple = ["cron", "every", "once"].includes(rule.kind);
            return isSimple ? asText([rule.kind, rule.spec, rule.timezone]) : value;
        } catch {
            return value;
        }
    }

    function make(tag, values, ...children) {
        const element = Object.assign(document.createElement(tag), values);
        element.append(...children);
        return element;
    }

    class DynbeatRule extends HTMLElement {
        static formAssociated = true;
        static observedAttributes = ["value", "preview-url", "zone"];
        #internals = this.attachInternals();
        #value = "";
        #initial = "";
        #parts = null;
        #timer = 0;
        #request = null;

        connectedCallback() {
            // While the page is parsed, the textarea inside is still missing.
            if (document.readyState === "loading") {
                document.addEventListener("DOMContentLoaded", () => this.#build(), {once: true});
            } else {
                this.#build();
            }
        }

        attributeChangedCallback(name) {
            if (this.#parts && name === "value") {
                this.value = this.getAttribute("value") || "";
            }
            if (this.#parts && name === "zone") {
                this.#hintZone();
            } else {
                this.#previewSoon();
            }
        }

        formResetCallback() {
            this.value = this.#initial;
        }

        formDisabledCallback(isDisabled) {
            this.querySelectorAll("input, select, textarea").forEach((each) => {
                each.disabled = isDisabled;
            });
        }

        get form() { return this.#internals.form; }
        get name() { return this.getAttribute("name") || ""; }
        get value() { return this.#value; }

        set value(value) {
            this.#set(String(value));
            this.#show(parse(textOf(this.#value), this.getAttribute("zone")));
            this.#previewSoon();
        }

        get #labels() { return {...LABELS, ...JSON.parse(this.dataset.labels || "{}")}; }

        #build() {
            if (this.#parts || !this.isConnected) {
                return;
            }
            const label = this.#labels;
            const field = this.querySelector("textarea") || make("textarea", {rows: 2});
            const named = (tag, key, values) => {
                const element = make(tag, values);
                element.setAttribute("aria-label", label[key]);
                return element;
            };
            const select = (key, options) => {
                const element = named("select", key);
                element.append(...options.map(([value, text]) => new Option(text, value)));
                return element;
            };
            const zones = make("datalist", {id: `dynbeat-zones-${this.name}`});

            this.#initial = this.getAttribute("value") ?? field.value;
            field.removeAttribute("name");
            // A hidden field that is required would stop the form without a message.
            this.toggleAttribute("required", field.required);
            field.required = false;
            field.spellcheck = false;
            field.placeholder ||= EXAMPLES;
            if (!field.labels || !field.labels.length) {
                field.setAttribute("aria-label", label.rule);
            }
            if (Intl.supportedValuesOf) {
                zones.append(...Intl.supportedValuesOf("timeZone").map((each) => new Option(each, each)));
            }
            this.#parts = {
                preset: select("preset", PRESETS.map((each) => [each, label[each]])),
                count: named("input", "number", {type: "number", min: 1, value: "1"}),
                unit: select("unit", [
                    ["S", label.seconds], ["M", label.minutes], ["H", label.hours], ["D", label.unitDays]
                ]),
                days: make("span", {className: "dynbeat-days"}, ...this.#dayBoxes()),
                monthDay: select("monthDay", [
                    ...Array.from({length: 31}, (_, n) => [String(n + 1), String(n + 1)]), ["L", label.last]
                ]),
                time: named("input", "at", {type: "time", value: "09:00"}),
                instant: named("input", "at", {type: "datetime-local"}),
                zone: named("input", "zone", {type: "text"}),
                rule: field,
                preview: make("div", {className: "dynbeat-preview"})
            };
            const {days, zone, preview, ...others} = this.#parts;
            others.unit.value = "M";
            days.setAttribute("role", "group");
            days.setAttribute("aria-label", label.days);
            zone.setAttribute("list", zones.id);
            zone.spellcheck = false;
            preview.setAttribute("aria-live", "polite");
            this.setAttribute("role", "group");
            this.setAttribute("aria-label", label.rule);
            this.replaceChildren(others.preset, others.count, others.unit, days, others.monthDay,
                others.time, others.instant, zone, field, zones, preview);
            for (const kind of ["input", "change"]) {
                this.addEventListener(kind, (event) => this.#changed(event));
            }
            this.#hintZone();
            this.value = this.#initial;
            if (this.form) {
                this.form.addEventListener("change", () => this.#previewSoon());
            }
        }

        #hintZone() {
            const zone = this.getAttribute("zone");
            const hint = this.#labels.zoneHint;

            this.#parts.zone.placeholder = zone ? `${zone} (${hint})` : hint;
        }

        #dayBoxes() {
            const language = this.closest("[lang]")?.lang || undefined;
            // 1 January 2024 was a Monday.
            return DAYS.map((day, n) => make("label", {},
                make("input", {type: "checkbox", value: day, checked: n < 5}), " ",
                new Date(2024, 0, n + 1).toLocaleDateString(language, {weekday: "short"})));
        }

        #set(value) {
            this.#value = value;
            this.#internals.setFormValue(value);
            if (this.hasAttribute("required") && !value.trim()) {
                this.#internals.setValidity({valueMissing: true}, this.#labels.rule, this.#parts.preset);
            } else {
                this.#internals.setValidity({});
            }
        }

        // The controls of a preset, with its values.
        #show(chosen) {
            const parts = this.#parts;

            if (!parts) {
                return;
            }
            parts.preset.value = chosen.preset;
            for (const name of ["count", "unit", "monthDay", "time", "instant", "zone"]) {
                if (chosen[name] !== undefined) {
                    parts[name].value = chosen[name];
                }
            }
            if (chosen.days) {
                parts.days.querySelectorAll("input").forEach((box) => {
                    box.checked = chosen.days.includes(box.value);
                });
            }
            parts.rule.value = this.#value;
            this.#showParts();
        }

        #showParts() {
            const parts = this.#parts;
            const shown = ["preset", "preview", ...SHOWN[parts.preset.value]];

            for (const [name, part] of Object.entries(parts)) {
                part.hidden = !shown.includes(name);
            }
            // Seconds, minutes and hours follow no clock.
            parts.zone.hidden = parts.preset.value === "every"
                ? parts.unit.value !== "D" : parts.zone.hidden;
        }

        #changed(event) {
            const parts = this.#parts;

            if (event.target === parts.rule) {
                this.#set(parts.rule.value);
            } else {
                const chosen = {
                    preset: parts.preset.value, count: parts.count.value, unit: parts.unit.value,
                    time: parts.time.value, instant: parts.instant.value, zone: parts.zone.value.trim(),
                    monthDay: parts.monthDay.value,
                    days: [...parts.days.querySelectorAll(":checked")].map((box) => box.value)
                };
                const written = chosen.preset === "custom" ? null : write(chosen);
                if (written) {
                    const isJson = this.getAttribute("format") === "json" || this.#value.startsWith("{");
                    this.#set((isJson ? asJson : asText)(written));
                    parts.rule.value = this.#value;
                } else if (chosen.preset !== "custom") {
                    this.#set("");
                }
                this.#showParts();
            }
            this.#previewSoon();
        }

        #previewSoon() {
            clearTimeout(this.#timer);
            if (this.#parts && this.getAttribute("preview-url")) {
                this.#timer = setTimeout(() => this.#preview(), DELAY);
            }
        }

        async #preview() {
            const request = new AbortController();
            const body = this.form ? new FormData(this.form) : new FormData();

            // An answer to an older rule must not replace that of a newer one.
            this.#request?.abort();
            this.#request = request;
            body.set(this.name, this.#value);
            try {
                const answer = await fetch(this.getAttribute("preview-url"), {
                    body, credentials: "same-origin", method: "POST", signal: request.signal
                });
                if (!answer.ok) {
                    throw new Error(String(answer.status));
                }
                this.#showPreview(await answer.json());
            } catch (error) {
                if (error.name !== "AbortError") {
                    this.#parts.preview.textContent = this.#labels.unavailable;
                }
            }
        }

        #showPreview({description = "", fire_times: times = [], notes = [], error = ""}) {
            const label = this.#labels;
            const line = (text, className) => make("p", {className, textContent: text});
            const list = make("ol", {}, ...times.map((text) => make("li", {textContent: text})));

            list.setAttribute("aria-label", label.next);
            this.#parts.preview.replaceChildren(...(error ? [line(error, "dynbeat-error")] : [
                line(description, "dynbeat-description"),
                times.length || !description ? list : line(label.never, ""),
                ...notes.map((text) => line(text, "dynbeat-note"))
            ]));
        }
    }

    if (!customElements.get("dynbeat-rule")) {
        customElements.define("dynbeat-rule", DynbeatRule);
    }
}());
