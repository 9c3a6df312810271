"""Prints docs/data-protection/data-flow.md, from the forms of everything that leaves a site."""

from pydantic import BaseModel

from tests.support.reply_forms import ATTACHED, FORMS, annotations, models_in

SAYS = {
    "describe": "who is there and how many patients; figures of columns by the small-cell rule",
    "summary": "the same, for `erosion describe`, before any training",
    "train": "a model update, and counts that belong to it",
    "train.STEP": "a method's further step of a round",
    "train.sealed_distance": "a sealed distance, and shares of secrets for other hospitals",
    "train.sealed_masked": "an update under masks",
    "train.sealed_unmask": "shares by which masks come off a sum",
    "evaluate": "figures of test patients; the user's own model",
    "any of a round": "that a study is not known here",
    "notice": "the coordinator's own words, sent back",
}
HEAD = """# Data flow

<!-- Made by `make pages` from the forms of every reply; a test sees that it is current. -->

> A template to be reviewed by your counsel and data protection officer.

```text
 HOSPITAL                                                 COORDINATOR
 controller of its patients' data                         at the user's hospital

 records --> site program --> log of every --> mutual --> round driver --> run folder
 never       limits, cells,   message,         TLS, one   weights          model,
 leave       approval,        chained by       outgoing      |             report
             budgets          hashes           connection    |
                 ^                                           |
                 +---- study, parameters (never code) -------+
```

Every hospital has the left side, the user's hospital too. No hospital connects to
another. The coordinator passes on models that are made of all hospitals' updates; in sealed rounds
keys and sealed shares, which it cannot read; with `ensemble` and `fedfomo` each hospital's model,
to the user's site; with `[validation]` the final model, to those that measure it. Nothing goes to
the program's authors or any other third party.

## What can leave a site

What each field means and who sends it is in the
[threat model](../threat-model.md#what-leaves-a-site-field-by-field).

| message | says | fields |
|---|---|---|
"""
TAIL = """
Steps of a method bring arrays, too, such as `gradient` or `neurons`. With every reply goes the hash
of the site's log. An error says its kind alone; its words stay in the site's log. A refusal says
which limit or budget was not kept.
"""


def fields(form: type[BaseModel]) -> list[str]:
    """The names at the top of a form; `...` where it goes on below."""
    found = annotations(form).items()
    return [f"`{name}`" + ("..." if [*models_in(kind)] else "") for name, kind in found]


def page() -> str:
    """The whole page."""
    lines = []
    for message, forms in FORMS.items():
        names = dict.fromkeys(name for form in forms for name in fields(form))
        names |= dict.fromkeys(f"`{name}`" for name in sorted(ATTACHED.get(message, ())))
        code = f"`{message}`" if message.islower() and " " not in message else message
        lines.append(f"| {code} | {SAYS[message]} | {', '.join(names)} |\n")
    return HEAD + "".join(lines) + TAIL


if __name__ == "__main__":
    print(page(), end="")
