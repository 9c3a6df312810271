"""Charts as SVG: text stays text; the page's style sheet or `standalone` gives colours."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil, floor, isfinite, log10, nan
from pathlib import Path

from markupsafe import Markup, escape

from erosion_common.protocol.performance import Estimate
from erosion_common.rounds.records import HospitalRecord, curve_of
from erosion_common.tasks.metric import Metric
from erosion_server.output.run_data import RunData
from erosion_server.output.words import printable, shortened, weight_text
from erosion_server.run.overview import Overview

STYLE = Path(__file__).parent / "templates" / "charts.css"
WIDTH, HEIGHT = 360, 230  # of the plot with its numbers, in units of the view box
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 24, 38
LINE_HEIGHT, LETTER = 16, 6.3  # of the names below
ROW_HEIGHT = 22
COLOURS, DASHES = 7, 4
LONGEST_NAME = 30
SMALLEST_SPAN = 1e-200  # of an axis
MOST_POINTS = 300  # of a line; finer would not be seen and makes the page large
MOST_LINES = 14  # hospitals in a chart
WIDE_RANGE = 40.0  # largest over smallest value from which a logarithmic axis is easier to read
MARKS = "●■▲◆▼✚✖"

Point = tuple[float, float | None]  # None: a gap


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`."""
    span = high - low
    if not (isfinite(span) and span > 0):
        return [low]
    raw = span / about
    power = 10.0 ** floor(log10(raw))
    step = next((k * power for k in (1, 2, 2.5, 5, 10) if k * power >= raw * 0.999), 10 * power)
    first = ceil(low / step - 1e-9)
    return [step * number for number in range(first, floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number for an axis."""
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-").replace("-", "\u2212")


def percent(value: float) -> str:
    """Return a share for an axis in percent."""
    return f"{100 * value:.3g}".replace("-", "\u2212")


@dataclass
class Plot:
    """A chart under construction."""

    x: tuple[float, float]
    y: tuple[float, float]
    x_label: str
    y_label: str
    x_form: Callable[[float], str] = short
    y_form: Callable[[float], str] = short
    logarithmic: bool = False  # in y
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    parts: list[Markup] = field(default_factory=list)
    names: list[tuple[str, Markup]] = field(default_factory=list)  # a name, and its line's look

    def __post_init__(self) -> None:
        self.x, self.y = (_not_empty(*ends) for ends in (self.x, self.y))
        for value in self._y_ticks():
            at = self._y(value)
            self._add("line", "grid", x1=self.left, x2=self.width - RIGHT, y1=at, y2=at)
            self._text(self.left - 6, at + 4, self.y_form(value), "tick", "end")
        bottom = self.height - BOTTOM
        self._add("line", "base", x1=self.left, x2=self.width - RIGHT, y1=bottom, y2=bottom)
        for value in nice_ticks(*self.x):
            self._text(self._x(value), bottom + 15, self.x_form(value), "tick", "middle")
        middle = (self.left + self.width - RIGHT) / 2
        label = shortened(printable(self.x_label), int((self.width - self.left) / LETTER))
        self._text(middle, bottom + 31, label, "axis", "middle")
        self._text(2, 12, self.y_label, "axis", "start")

    @classmethod
    def of_rows(
        cls, names: Sequence[str], span: tuple[float, float], label: str, width: int = WIDTH
    ) -> "Plot":
        """Return an empty plot with room for a named row each; row 0 is the lowest."""
        return cls(
            span,
            (0, len(names)),
            label,
            "",
            y_form=lambda _: "",
            width=width,
            height=TOP + BOTTOM + ROW_HEIGHT * len(names),
            left=16 + int(LETTER * max(map(len, names))),
        )

    def _y_ticks(self) -> list[float]:
        if not self.logarithmic:
            return nice_ticks(*self.y)
        low, high = floor(log10(self.y[0])), ceil(log10(self.y[1]))
        every = max(1, ceil((high - low) / 6))
        powers = [10.0**power for power in range(low, high + 1, every)]
        return [power for power in powers if self.y[0] <= power <= self.y[1]]

    def _x(self, value: float) -> float:
        low, high = self.x
        share = (value - low) / (high - low)
        return round(self.left + share * (self.width - RIGHT - self.left), 1)

    def _y(self, value: float) -> float:
        low, high = self.y
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(max(value, self.y[0]))
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return round(self.height - BOTTOM - share * (self.height - BOTTOM - TOP), 1)

    def _places(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self._x(x)},{self._y(y)}" for x, y in points)

    def _add(self, tag: str, look: str, **attributes: object) -> None:
        said = " ".join(f'{name}="{escape(str(value))}"' for name, value in attributes.items())
        self.parts.append(Markup(f'<{tag} class="{escape(look)}" {said}/>'))

    def _text(self, x: float, y: float, words: str, look: str, anchor: str) -> None:
        self.parts.append(
            Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>').format(
                round(x, 1), round(y, 1), look, anchor, printable(words, at_most=80)
            )
        )

    def line(self, name: str, points: Sequence[Point], style: int, ending: str = "") -> None:
        """Draw a line with gaps; a point without neighbours is a dot. "" is not named below."""
        look = _look(style)
        for piece in _pieces(thinned(points)):
            if len(piece) == 1:
                x, y = piece[0]
                self._add("circle", f"dot {look}", cx=self._x(x), cy=self._y(y), r=3)
            else:
                self._add("polyline", f"line {look}", points=self._places(piece))
        if name:
            self.mark(name, style, ending)

    def band(
        self, x: Sequence[float], low: Sequence[float], high: Sequence[float], style: int
    ) -> None:
        """Shade an interval."""
        outline = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
        if outline:
            self._add("polygon", f"band {_look(style)}", points=self._places(outline))

    def dot(self, x: float, found: Estimate, style: int) -> None:
        """Draw a dot with its interval."""
        at, low, high = self._x(x), self._y(found.low), self._y(found.high)
        self._add("line", f"line {_look(style)}", x1=at, x2=at, y1=low, y2=high)
        self._add("circle", f"dot {_look(style)}", cx=at, cy=self._y(found.value), r=3.5)

    def bars(self, ends: Sequence[float], shares: Sequence[float | None], style: int) -> None:
        """Draw bars upwards from the axis, each between two neighbouring ends."""
        for first, last, share in zip(ends, ends[1:], shares, strict=False):
            if share:
                top, bottom = self._y(share), self.height - BOTTOM
                at, wide = round(self._x(first) + 1, 1), self._x(last) - self._x(first) - 2
                size = {"width": round(max(1.0, wide), 1), "height": round(bottom - top, 1)}
                self._add("rect", f"fill {_look(style)}", x=at, y=top, **size)

    def reference(self, name: str, points: Sequence[tuple[float, float]]) -> None:
        """Draw a dotted line."""
        self._add("polyline", "ref", points=self._places(points))
        shown = shortened(printable(name), LONGEST_NAME + 10)
        self.names.append((shown, Markup('class="ref"')))

    def marks(self, row: int, name: str, values: Sequence[float]) -> None:
        """Draw one row of marks, one for each arm in turn, and its name."""
        at = self._y(row + 0.5)
        self._text(self.left - 8, at + 4, name, "name", "end")
        first, last = self._x(min(values)), self._x(max(values))
        self._add("line", "span", x1=first, x2=last, y1=at, y2=at)
        for style, value in enumerate(values):
            shift = 4 * (style - (len(values) - 1) / 2) / len(values)
            x, mark = self._x(value), MARKS[style // COLOURS % len(MARKS)]
            self._text(x, at + shift + 4, mark, f"mark s{style % COLOURS}", "middle")

    def interval(
        self, row: int, name: str, found: Estimate, style: int, inner: Estimate | None = None
    ) -> None:
        """Draw one row of a forest plot, cut at the axis' ends; `inner` is a thicker interval."""
        at, look = self._y(row + 0.5), _look(style)
        self._text(self.left - 8, at + 4, name, "name", "end")

        def along(value: float) -> float:
            return self._x(min(self.x[1], max(self.x[0], value)))

        for each, kind in ((found, "line"), (inner, "line thick")):
            if each is not None:
                ends = {"x1": along(each.low), "x2": along(each.high)}
                self._add("line", f"{kind} {look}", **ends, y1=at, y2=at)
        self._add("circle", f"dot {look}", cx=along(found.value), cy=at, r=3.5)

    def tick(self, x: float, name: str, room: float) -> None:
        """Name a place on the x axis, in the room that there is."""
        shown = shortened(printable(name), max(3, int(room / LETTER)))
        self._text(self._x(x), self.height - BOTTOM + 15, shown, "tick", "middle")

    def mark(self, name: str, style: int, ending: str = "") -> None:
        """Name a line, or an arm's mark, below."""
        shown = f"{shortened(printable(name), LONGEST_NAME)} {ending}".strip()
        self.names.append((shown, Markup('class="line {}"').format(_look(style))))

    def shade(self, first: float, last: float) -> None:
        """Shade a range of x."""
        left, right = self._x(max(first, self.x[0])), self._x(min(last, self.x[1]))
        size = {"width": round(max(1.0, right - left), 1), "height": self.height - BOTTOM - TOP}
        self._add("rect", "shade", x=left, y=TOP, **size)
        self.parts.insert(0, self.parts.pop())

    def svg(self, title: str, description: str = "") -> Markup:
        """Return the chart as an `<svg>` element, with its lines' names below it."""
        names = list(self._named())
        height = self.height + (LINE_HEIGHT * (1 + names[-1][0]) + 4 if names else 0)
        below = Markup().join(markup for _, markup in names)
        said = Markup("<title>{}</title>").format(printable(title, at_most=300))
        if description:
            said += Markup("<desc>{}</desc>").format(printable(description, at_most=2000))
        label = printable(f"{title}. {description}" if description else title, at_most=600)
        return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>').format(
            self.width, height, label, said, Markup().join(self.parts), below
        )

    def _named(self) -> Iterator[tuple[int, Markup]]:
        if not self.names:
            return
        wide = max(LETTER * len(name) for name, _ in self.names) + 40
        columns = max(1, min(len(self.names), int((self.width - 10) // wide)))
        for number, (name, look) in enumerate(self.names):
            row, column = divmod(number, columns)
            x, y = 8 + column * (self.width - 10) / columns, self.height + LINE_HEIGHT * row + 6
            yield (
                row,
                Markup(
                    '<polyline {} points="{},{} {},{}"/><text x="{}" y="{}" class="name">{}</text>'
                ).format(look, round(x), y, round(x) + 22, y, round(x) + 28, y + 4, name),
            )


def _not_empty(low: float, high: float) -> tuple[float, float]:
    if not (isfinite(low) and isfinite(high)):
        return 0.0, 1.0
    if high - low > max(1e-12 * max(abs(low), abs(high)), SMALLEST_SPAN):
        return low, high
    return low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2


def _look(style: int) -> str:
    return f"s{style % COLOURS} d{style // COLOURS % DASHES}"


def _pieces(points: Iterable[Point]) -> Iterator[list[tuple[float, float]]]:
    for known, piece in groupby(
        points, key=lambda point: isfinite(nan if point[1] is None else point[1])
    ):
        if known:
            yield [(x, y) for x, y in piece if y is not None]


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most about MOST_POINTS of the points, evenly, the last one always among them."""
    step = ceil(len(points) / MOST_POINTS)
    return [*points[:-1:step], *points[-1:]] if step > 1 else list(points)


def standalone(svg: Markup) -> str:
    """Return a chart as a file of its own, in light colours on white."""
    wide, high = svg.partition('viewBox="0 0 ')[2].partition('"')[0].split()
    size = f'xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}"'
    look = 'font-family="sans-serif" style="background:#fff"'
    head, _, rest = str(svg).partition(">")
    opened = head.replace("<svg ", f"<svg {size} {look} ", 1)
    return f"{opened}><style>{STYLE.read_text('utf-8')}</style>{rest}\n"


def strip(
    found: Estimate | None,
    ends: tuple[float, float],
    reference: float | None = None,
    other: Estimate | None = None,
    *,
    logarithmic: bool = False,
) -> Markup:
    """Return one row of a forest plot, as wide as its cell, and `other` below it."""

    def at(value: float) -> str:
        low, high, here = (log10(max(v, 1e-9)) if logarithmic else v for v in (*ends, value))
        return f"{2 + 96 * min(1.0, max(0.0, (here - low) / (high - low))):.1f}%"

    marks = Markup()
    if reference is not None:
        marks += Markup('<line class="ref" x1="{0}" x2="{0}" y1="0" y2="100%"/>').format(
            at(reference)
        )
    places = ("50%", "") if other is None else ("30%", "72%")
    for style, (each, y) in enumerate(zip((found, other), places, strict=True)):
        if each is not None:
            marks += Markup(
                '<line class="line s{0} d0" x1="{1}" x2="{2}" y1="{4}" y2="{4}"/>'
                '<circle class="dot s{0} d0" cx="{3}" cy="{4}" r="3.5"/>'
            ).format(style, at(each.low), at(each.high), at(each.value), y)
    return Markup('<svg class="strip" aria-hidden="true" height="24">{}</svg>').format(marks)


def metric_figure(run: RunData, metric: Metric) -> Markup:
    """Return one metric of the user's over the rounds, one line an arm, and the base rate's."""
    lines = {arm: metric_points(run, arm, metric.name) for arm in run.result.arms}
    called, other = run.result.task.baseline(metric)
    found = run.result.base_rate
    base_rate = None if found is None else found.get(other)
    user = run.shown(run.result.user)
    known = [y for points in lines.values() for _, y in points if y is not None and isfinite(y)]
    last = max(x for points in lines.values() for x, _ in points)
    ends = [*known, *([base_rate] if base_rate is not None else [])] or [0.0, 1.0]
    low = 0.0 if metric.from_zero else min(ends)
    whole = (0, max(1, last))
    plot = Plot(whole, (low, max(ends)), "rounds finished", f"{metric.label} ({metric.unit})")
    if base_rate is not None:
        ending = f"{called} {metric.text(base_rate)}"
        plot.reference(ending, [(number, base_rate) for number in whole])
    said = []
    for style, (arm, drawn) in enumerate(lines.items()):
        final = next((y for _, y in reversed(drawn) if y is not None and isfinite(y)), None)
        ending = "" if final is None else metric.text(final)
        plot.line(arm, drawn, style, ending)
        said.append(f"{arm} ends at {ending or 'no value'}")
    title = f"{metric.label} of {user} after each round, one line for each arm"
    return plot.svg(title, "; ".join(said))


def metric_points(run: RunData, arm: str, metric: str) -> list[tuple[int, float | None]]:
    """(rounds finished, value)."""
    ended = run.result.arms[arm]
    return [
        (number, None if metrics is None else metrics.get(metric))
        for number, metrics in curve_of(run.of(arm), ended.rounds, ended.metrics)
    ]


def weight_figure(run: RunData) -> Markup:
    """Return the weight of every other hospital after each round; "" where there is none."""
    is_own, user = run.own_counts_one, run.shown(run.result.user)
    unit = f"{shortened(user, LONGEST_NAME)} = 1" if is_own else "largest = 1"
    return _peers_figure(
        run,
        weight_shown,
        title=f"weight of each hospital after each round of {run.first_arm}",
        y_label=f"weight ({unit})",
        ending=_when_out,
        reference=(f"{user} 1.00", 1.0) if is_own else None,
    )


def weight_shown(entry: HospitalRecord) -> float | None:
    """Return the weight in a round; None where its update was not part of it, unless it is out."""
    is_out = entry.outcome == "not_asked" and entry.weight_after == 0.0
    return entry.weight_after if entry.outcome == "accepted" or is_out else None


def _when_out(points: Sequence[Point]) -> str:
    """Return when the weight fell to 0 for good; "" where it did not."""
    known = [(number, weight) for number, weight in points if weight is not None]
    above = [index for index, (_, weight) in enumerate(known) if weight > 0.0]
    first = above[-1] + 1 if above else 0
    return f"out in round {known[first][0]:g}" if first < len(known) else ""


def distance_figure(run: RunData) -> Markup:
    """Return the chart of every peer's distance from the user; "" where none was measured."""
    unit = "1 - cosine" if run.distances_are_angles else "length of own update = 1"
    return _peers_figure(
        run,
        distance_shown,
        title=f"distance of each hospital's update in each round of {run.first_arm}",
        y_label=f"distance ({unit})",
        may_be_logarithmic=True,
    )


def distance_shown(entry: HospitalRecord) -> float | None:
    """Return the distance in a round; None where the update was not part of it."""
    return entry.distance if entry.outcome == "accepted" else None


def _peers_figure(
    run: RunData,
    value: Callable[[HospitalRecord], float | None],
    *,
    title: str,
    y_label: str,
    ending: Callable[[Sequence[Point]], str] = lambda _points: "",
    reference: tuple[str, float] | None = None,
    may_be_logarithmic: bool = False,
) -> Markup:
    """Return a line for each peer with a value in the first arm; of very many the heaviest.

    `ending`: what became of it, in place of the last value. A peer looks alike in all charts.
    """
    records, given = run.of(run.first_arm), run.result.contributions
    heaviest = sorted(run.peers, key=lambda name: -(given[name].weight_sum if name in given else 0))
    lines: list[tuple[str, list[Point], int, str]] = []
    shown = set(heaviest[:MOST_LINES])
    for style, name in enumerate(name for name in run.peers if name in shown):
        entries = [(record.round, record.hospitals.get(name)) for record in records]
        points: list[Point] = [(n, None if e is None else value(e)) for n, e in entries]
        if known := [y for _, y in points if y is not None]:
            end = ending(points) or weight_text(known[-1])
            lines.append((run.shown(name), points, style, end))
    if not lines:
        return Markup()
    values = [y for _, points, _, _ in lines for _, y in points if y is not None and isfinite(y)]
    above = [y for y in values if y > 0]
    is_wide = may_be_logarithmic and bool(above) and max(above) > WIDE_RANGE * min(above)
    top = max([*values, *([reference[1]] if reference else [])], default=1.0)
    first, last = 1, max(2, records[-1].round)
    plot = Plot(
        (first, last),
        (min(above), max(above)) if is_wide else (0.0, 1.05 * top),
        "round",
        f"{y_label}, logarithmic" if is_wide else y_label,
        logarithmic=is_wide,
    )
    for record in records:
        if record.outcome == "skipped":
            plot.shade(record.round - 0.5, record.round + 0.5)
    if reference is not None:
        plot.reference(reference[0], [(first, reference[1]), (last, reference[1])])
    for name, points, style, end in lines:
        plot.line(name, points, style, end)
    return plot.svg(title, "; ".join(f"{name} ends at {end}" for name, _, _, end in lines))


def loss_figure(overview: Overview) -> Markup:
    """Return one row for each hospital and one mark for each arm."""
    metric = overview.task.metric(overview.task.verdict_metric)
    title = f"{metric.label} of every arm for each hospital of {overview.study}"
    losses = {
        user: [metrics[metric.name] for metrics in line.arms.values()]
        for user, line in overview.users.items()
    }
    every = [loss for of_user in losses.values() for loss in of_user]
    names = {user: shortened(printable(user), LONGEST_NAME) for user in losses}
    label = f"{metric.label} ({metric.unit}); less is better"
    plot = Plot.of_rows([*names.values()], (min(every), max(every)), label, width=560)
    for row, (user, of_user) in enumerate(reversed(losses.items())):
        plot.marks(row, names[user], of_user)
    for style, arm in enumerate(overview.arms):
        plot.mark(arm, style)
    return plot.svg(title)
