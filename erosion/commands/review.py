"""`erosion review`."""

import argparse
import getpass
import sys
from collections.abc import Iterable
from pathlib import Path

from erosion.commands.command import Command
from erosion.common.errors import SiteError
from erosion.common.support.process import imports_for_good
from erosion.common.support.text import answer_to, shown

EXAMPLES = """\
  erosion review site.toml                          the studies that wait, and those decided
  erosion review site.toml 3f2a                     one of them, in plain words
  erosion review site.toml 3f2a --approve           take part in exactly this study
  erosion review site.toml --study STUDY.toml       a study file that was handed over
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("site", type=Path, help="the hospital's site file")
    parser.add_argument("digest", nargs="?", help="a study's digest, or the beginning of it")
    parser.add_argument(
        "--study", type=Path, help="a study file, to decide before any coordinator asks"
    )
    decision = parser.add_mutually_exclusive_group()
    decision.add_argument("--approve", action="store_true", help="take part in exactly this study")
    decision.add_argument("--decline", action="store_true", help="take no part, or no longer")
    parser.add_argument("--by", metavar="NAME", help="who decides (default: the login name)")


def _lines(lines: Iterable[str]) -> str:
    """Each without what could hide or turn around what a coordinator wrote into its study."""
    return "\n".join(shown(line).replace("\n", "\ufffd") for line in lines)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the account is often a number only
        raise SiteError(
            "This account has no login name, and the decision is kept with who made it. Say so"
            " with --by NAME."
        ) from None


def _run(options: argparse.Namespace) -> int:
    with imports_for_good():
        from erosion.client.consent.approvals import decide, entry_of, too_many_approved
        from erosion.client.consent.budgets import listing, named
        from erosion.client.consent.review import review
        from erosion.client.records.account import claim
        from erosion.client.records.records import Records
        from erosion.client.site_file import load_site
        from erosion.common.errors import StudyError
        from erosion.common.study.study import load_study, study_from_json

    if options.study is None and options.digest is None:
        said = [name for name in ("approve", "decline", "by") if getattr(options, name)]
        if said:
            raise StudyError(f"--{said[0]} of which study? Give its digest, or --study FILE.")
    site = load_site(options.site)
    claim(site)
    records = Records.of(site)
    try:
        if options.study is None and options.digest is None:
            print(_lines(listing(site, records)))
            return 0
        if options.study is not None:
            entry = entry_of(load_study(options.study), records)
            if options.digest and not entry.digest.startswith(options.digest.lower()):
                raise StudyError(
                    f"The study in {options.study} has the digest {entry.digest[:12]}..., which"
                    f" does not begin with {options.digest!r}: it is another one. Nothing was"
                    " decided."
                )
        else:
            entry = named(options.digest, records)
        try:
            print(_lines(review(site, study_from_json(entry.content), records)))
        except StudyError:  # of another version of this program
            if not options.decline:
                raise
        is_asked = not (options.approve or options.decline)
        if is_asked and not sys.stdin.isatty():
            print("\nDecide with --approve or --decline.")
            return 0
        by, approve = options.by or _login_name(), options.approve
        if is_asked:
            answer = answer_to("\nTake part in exactly this study? [yes/no/later] ").lower()
            if answer not in ("yes", "y", "no", "n"):
                print("Nothing was decided.")
                return 0
            approve = answer.startswith("y")
        if approve and entry.state != "approved" and (full := too_many_approved(site, records)):
            raise SiteError(
                f"Nothing was decided: {full}. Raise that in {options.site}, or decline a study"
                " that is over; then approve this one."
            )
        done = decide(records, entry, approve=approve, by=by)
    finally:
        records.close()
    print(f"\n{done.state.capitalize()} by {done.decided_by} at {done.decided}.")
    return 0


COMMAND = Command(
    name="review",
    summary="look at a study and approve it for this hospital, or decline it",
    details="A site takes part in a study only after somebody there approved exactly this study,"
    " unless approval.automatic in the site file says otherwise.",
    add_arguments=_add_arguments,
    run=_run,
    examples=EXAMPLES,
)
