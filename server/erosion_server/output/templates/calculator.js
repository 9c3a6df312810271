"use strict";
const model = JSON.parse(document.getElementById("model").textContent);
const field = (i) => document.getElementById("f" + i);
const say = (i, text, wrong) => {
  document.getElementById("s" + i).textContent = text;
  field(i).setAttribute("aria-invalid", wrong ? "true" : "false");
};

// A comma is a decimal mark unless it could group thousands.
function number(text) {
  const plain = /^[+-]?\d+,\d+$/.test(text) && !/^[+-]?[1-9]\d{0,2},\d{3}$/.test(text) ? text.replace(",", ".") : text;
  return /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(plain) ? Number(plain) : null;
}

// The value of a field: NaN where it is missing, null where there can be no result.
function read(i) {
  const of = model.fields[i], text = field(i).value.trim();
  if (text === "") {
    say(i, "", false);
    return of.may_lack ? NaN : undefined;
  }
  if (of.categories.length) { say(i, "", false); return Number(text); }
  const value = number(text), [low, high] = of.range;
  if (value === null) { say(i, "Write a number, such as 12.5.", true); return null; }
  if (value < low || value > high) {
    say(i, `Outside ${low} to ${high}: there is no result for it.`, true);
    return null;
  }
  say(i, of.usual && (value < of.usual[0] || value > of.usual[1])
    ? "Far from what the model learned from. Is the unit right?" : "", false);
  return value;
}

// As `predict`: the inputs and the weights are single precision.
function predict(values) {
  const inputs = model.inputs.map(([feature, code, cubes, mean, deviation, farthest, fill]) => {
    let value = values[feature];
    if (Number.isNaN(value)) return Math.fround(fill);
    if (code !== null) return code >= 0 && value === code ? 1 : 0;  // -1: that it is missing
    const {winsorise, log} = model.fields[feature];
    if (winsorise) value = Math.min(Math.max(value, winsorise[0]), winsorise[1]);
    if (log) value = Math.log(value);
    if (cubes.length) value = cubes.reduce((sum, [knot, factor]) => sum + factor * Math.max(value - knot, 0) ** 3, 0);
    return Math.fround(Math.min(Math.max((value - mean) / deviation, -farthest), farthest));
  });
  for (const [left, right] of model.products) {
    const value = Math.fround(inputs[left] * inputs[right]);
    inputs.push(Math.min(Math.max(value, -model.farthest), model.farthest));
  }
  const sums = model.members.map(([weights, biases]) => {
    const outputs = biases.map((bias, k) => weights[k].reduce((sum, w, j) => sum + w * inputs[j], bias));
    if (model.is_rate) return [model.centre * Math.exp(Math.min(outputs[0], 20))];
    if (model.predicts === "number") return [model.centre + model.spread * outputs[0]];
    if (model.predicts === "classes") {
      const top = Math.max(...outputs), each = outputs.map((z) => Math.exp(z - top));
      const total = each.reduce((a, b) => a + b);
      return each.map((e) => e / total);
    }
    let free = 1;
    return outputs.map((z) => (free /= 1 + Math.exp(z + model.start)));
  });
  return sums[0].map((_, k) => sums.reduce((total, each, m) => total + model.shares[m] * each[k], 0));
}

const percent = (p) => p < 0.001 ? "below 0.1 %" : p > 0.999 ? "above 99.9 %" : (100 * p).toFixed(1) + " %";
const shown = (p) => model.predicts === "number" ? Number(p.toPrecision(4)) + (model.unit ? " " + model.unit : "") : percent(p);

function update() {
  const values = model.fields.map((_, i) => read(i));
  const lacks = values.flatMap((v, i) => v === undefined ? [model.fields[i].name] : []);
  const result = document.getElementById("result"), note = document.getElementById("note");
  const table = document.getElementById("values"), rows = document.querySelectorAll("#thresholds tbody tr");
  table.hidden = true;
  for (const row of rows) row.cells[1].textContent = "";
  delete result.dataset.values;
  const isEmpty = values.every((v) => v === undefined || Number.isNaN(v));
  if (isEmpty || lacks.length || values.includes(null)) {
    result.textContent = "No result";
    note.textContent = isEmpty ? "Fill in what is known of the patient." : lacks.length ? "Still needed: " + lacks.join(", ") + "." : "Correct what is marked above.";
    return;
  }
  const found = predict(values), missing = values.flatMap((v, i) => Number.isNaN(v) ? [model.fields[i].name] : []);
  const risk = model.predicts === "times" ? 1 - found[model.asked] : found[model.asked];
  result.dataset.values = JSON.stringify(found);
  const likeliest = found.indexOf(Math.max(...found)), several = model.predicts === "classes" && found.length > 2;
  result.textContent = several ? model.labels[likeliest] + ": " + shown(found[likeliest]) : shown(risk);
  table.hidden = !several && model.predicts !== "times";
  if (!table.hidden) found.forEach((p, k) => { table.rows[k].cells[1].textContent = shown(several ? p : 1 - p); });
  model.thresholds.forEach((from, k) => { rows[k].cells[1].textContent = risk >= from ? "at or above" : "below"; });
  const near = model.groups.reduce((best, g) => !best || Math.abs(g[0] - risk) < Math.abs(best[0] - risk) ? g : best, null);
  note.textContent = [
    near && `Of about ${near[1]} patients with the nearest results (${shown(near[0])} on average), ${near[2]}.`,
    missing.length && `Not known, filled in as in the study: ${missing.join(", ")}.`,
  ].filter(Boolean).join(" ");
}

document.getElementById("form").addEventListener("input", update);
document.getElementById("form").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("clear").addEventListener("click", () => { document.getElementById("form").reset(); update(); });
update();
