// The order of the results of a search. Sphinx puts this file into _static/language_data.js.
//
// Sphinx gives a page the points of its best word, so a heading with one of three words ties with
// a heading with all three. This scorer counts the words of the query in the title of the page and
// in the best heading of the page. It prefers pages that solve a problem to pages that record.

const DYNBEAT_FOLDERS = [
  ["how-to/switch-from", 0],
  ["how-to/", 4],
  ["faq", 0],
  ["tutorial", 0],
  ["explanation/", 1],
  ["reference/python", -8],
  ["reference/commands", -10],
  ["reference/", 1],
  ["changelog", -12],
  ["index", -12],
];
const DYNBEAT_POINTS = { title: 5, heading: 3, phrase: 3 };

const dynbeatWords = (text) => {
  const stemmer = new Stemmer();
  const words = text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
  return new Set(words.filter((word) => !stopwords.has(word)).map((word) => stemmer.stemWord(word)));
};

const dynbeatCount = (words, others) => [...words].filter((word) => others.has(word)).length;

// The words of each heading, by page. The index is complete when the first result has a score.
let dynbeatHeadings = null;
const dynbeatHeadingsOf = (page) => {
  if (dynbeatHeadings === null) {
    dynbeatHeadings = new Map();
    for (const [heading, places] of Object.entries(Search._index.alltitles)) {
      for (const [file] of places) {
        const name = Search._index.docnames[file];
        if (!dynbeatHeadings.has(name)) dynbeatHeadings.set(name, []);
        dynbeatHeadings.get(name).push(dynbeatWords(heading));
      }
    }
  }
  return dynbeatHeadings.get(page) || [];
};

const dynbeatScore = ([page, title, , , score, , kind]) => {
  const folder = DYNBEAT_FOLDERS.find(([prefix]) => page.startsWith(prefix));
  const points = score + (folder ? folder[1] : 0);
  // An object has its name as its title.
  if (kind === "object") return points;
  const words = dynbeatWords(new URLSearchParams(window.location.search).get("q") || "");
  const inTitle = dynbeatCount(words, dynbeatWords(title.split(" > ")[0]));
  const inHeading = Math.max(0, ...dynbeatHeadingsOf(page).map((each) => dynbeatCount(words, each)));
  return (
    points +
    DYNBEAT_POINTS.title * inTitle +
    DYNBEAT_POINTS.heading * inHeading +
    (kind === "title" ? DYNBEAT_POINTS.phrase : 0)
  );
};

// All keys are needed: this object replaces the one of Sphinx. Their values are Sphinx's.
var Scorer = {
  score: dynbeatScore,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
