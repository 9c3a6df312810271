"""The report's style sheet: a light screen, a dark one, and paper.

The series colours are those of Okabe and Ito (2008), told apart with any kind of colour vision;
orange, sky blue and purple are darkened on white and blue and green lightened on black, so that a
thin line stays visible.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f4f6f8; --ink: #1b1f24; --faint: #6a737d; --grid: #e4e8ec;
  --accent: #0072b2;
  --series-0: #0072b2; --series-1: #d55e00; --series-2: #009e73; --series-3: #b4609a;
  --series-4: #c98300; --series-5: #3a9fd8; --series-6: #4a4f55;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --panel: #1e2328; --ink: #e6e9ec; --faint: #98a2ac; --grid: #2c3339;
    --accent: #56b4e9;
    --series-0: #4a9fe0; --series-1: #ee7733; --series-2: #1fbf91; --series-3: #d98cbf;
    --series-4: #e69f00; --series-5: #8ad0f5; --series-6: #c3c9cf;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 58rem;
  background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header p { margin: 0; color: var(--faint); }
h1 { margin: 0.6rem 0 0; font-size: 2rem; line-height: 1.22; letter-spacing: -0.01em; }
h2 { margin: 3rem 0 0.4rem; font-size: 1.25rem; }
p { margin: 0.5rem 0; max-width: 50rem; }
.verdict { margin: 1.4rem 0 0; padding: 1.2rem 1.5rem 1.1rem; background: var(--panel);
  border-left: 5px solid var(--faint); border-radius: 4px; }
.verdict.found { border-color: var(--accent); }
.verdict.caution { border-color: var(--series-1); }
.verdict.caution h2 { margin: 0; }
.verdict p { margin: 0.6rem 0 0; font-size: 1.08rem; }
.note, figcaption, caption { color: var(--faint); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 0.8rem 0; font-size: 0.95rem;
  font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; vertical-align: bottom; padding: 0.35rem 0.9rem 0.35rem 0;
  border-bottom: 2px solid var(--grid); }
td { padding: 0.4rem 0.9rem 0.4rem 0; border-bottom: 1px solid var(--grid); vertical-align: top;
  overflow-wrap: break-word; }
th.number, td.number { text-align: right; }
td:first-child { min-width: 9.5em; overflow-wrap: anywhere; }
.users td small { white-space: normal; }
.events td:last-child, .facts td:last-child { overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
td small { display: block; color: var(--faint); font-size: 0.86em; white-space: nowrap; }
tr.best td { font-weight: 600; }
tr.best small { font-weight: 400; }
.facts td:first-child { width: 11rem; color: var(--faint); }
.matrix td, .matrix th { text-align: center; padding: 0.4rem 0.5rem; }
.matrix th:first-child { text-align: left; white-space: nowrap; }
.matrix td { border: 2px solid var(--page); }
a { color: var(--accent); }
figure { margin: 1rem 0 1.8rem; }
figcaption { margin-top: 0.3rem; max-width: 50rem; }
svg { display: block; width: 100%; min-width: 40rem; height: auto; }
svg * { stroke-linecap: butt; stroke-linejoin: round; }
pre, code { font: 0.85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { padding: 1rem; background: var(--panel); border-radius: 4px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--accent); }
@page { margin: 16mm 15mm; }
@media print {
  body { padding: 0; max-width: none; font-size: 10.5pt; }
  h1 { font-size: 1.7rem; }
  h2, .note { break-after: avoid; }
  h2 { margin-top: 2rem; }
  svg { min-width: 0; }
  .scroll { overflow: visible; }
  table { font-size: 8.5pt; }
  th, td { padding-right: 0.6rem; }
  figure, table, tr, .verdict, .note { break-inside: avoid; }
  .events, .facts { break-inside: auto; }
  .verdict { border: 1px solid var(--faint); border-left-width: 5px; }
  details::details-content { content-visibility: visible; height: auto; }
  pre { columns: 3; font-size: 7pt; line-height: 1.25; }
}
"""
