"""The sub-commands of `erosion enroll` that are for sites."""

import argparse
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

from erosion_common.errors import SiteError
from erosion_common.support.keys import fingerprint

Handler = Callable[[argparse.Namespace], None]


def add_enroll_commands(commands: Any) -> None:
    """Add them; `options.enroll` is the function to call."""
    summary = "at a site: make its own key, and the request that the coordinator signs"
    request = _command(commands, "request", _request, summary)
    request.add_argument("name", help="what the study files call this hospital")
    request.add_argument(
        "--out",
        type=Path,
        default=Path("node.key"),
        metavar="FILE",
        help="the key; the request is put next to it (default: %(default)s)",
    )

    summary = "at a site: put a kit's keys and certificates in place; the site file stays as it is"
    install = _command(commands, "install", _install, summary)
    install.add_argument("kit", type=Path, help="the archive that the coordinator sent")
    install.add_argument("site", type=Path, help="the site file")
    install.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="also put in place this key, which `erosion enroll request` made for this kit"
        " (default: the key that the site file names, or the kit's)",
    )
    install.add_argument(
        "--new-authority",
        action="store_true",
        help="trust the kit's authority in place of the one that this site trusts; compare its"
        " fingerprint first. Coordinators of the former one are no longer connected to. Approvals"
        " stay; budgets by coordinator begin at 0 for those of the new one",
    )

    summary = "at a site: pin the other hospitals' public keys, for sealed rounds"
    pin = _command(commands, "pin", _pin, summary)
    pin.add_argument("peers", type=Path, help="the peers.pem that the coordinator sent")
    pin.add_argument("site", type=Path, help="the site file")
    pin.add_argument(
        "--replace",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="replace the keys of these hospitals, which told you themselves that they changed",
    )


def _command(commands: Any, name: str, handler: Handler, summary: str) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary.capitalize()}."
    )
    sub.set_defaults(enroll=handler)
    return sub


def _request(options: argparse.Namespace) -> None:
    from erosion_client.enrolment.install import make_request

    request_file, key = make_request(options.name, options.out)
    print(
        f"Made {options.out}, which stays here, and {request_file}, which the coordinator needs:\n"
        f"  erosion enroll sign {quote(request_file.name)}\n"
        "or, where this hospital has a key already, which this one is to replace:\n"
        f"  erosion enroll sign {quote(request_file.name)} --replace\n"
        "When the kit comes back (only the first one is unpacked, before that):\n"
        f"  erosion enroll install KIT SITE.toml --key {quote(str(options.out))}\n"
        f"Fingerprint, to compare by telephone: {fingerprint(key)}"
    )


def _install(options: argparse.Namespace) -> None:
    from erosion_client.enrolment.install import install
    from erosion_client.preflight.check import weaker_values
    from erosion_client.site_file import AppSite, load_app_site, load_site

    site = load_app_site(options.site)
    made = install(options.kit, site, own_key=options.key, new_authority=options.new_authority)
    print(
        f"Installed {', '.join(map(str, made.files))}; the certificate is {made.words}.\n"
        "A running `erosion client` connects again with it; start one that ended."
    )
    if made.replaced_authority:
        print(
            f"{site.coordinator.root_certificate} is another authority's than before: this site"
            " connects to no coordinator of the former one any more. In its records the coordinator"
            " is a new one, for which runs, rounds, final figures and ranges of columns are counted"
            " from 0 (budget.runs_per_study, rounds, evaluations, variants). What people here"
            " approved or declined holds for it, too."
        )
    if options.key is not None and not options.key.samefile(made.key_file):
        print(f"The key is in {made.key_file} now: delete {options.key}.")
    if made.pinned is not None:
        print("\n".join(made.pinned.lines()))
    try:
        whole: AppSite = load_site(options.site)
    except SiteError:  # it need not be complete for this
        whole = site
    if weaker := [f"  {key} = {value}" for key, value in weaker_values(whole)]:
        print(f"In {options.site} these values protect patients less than the defaults:")
        print("\n".join(weaker))


def _pin(options: argparse.Namespace) -> None:
    from erosion_client.enrolment.install import pin_peers
    from erosion_client.site_file import load_app_site

    site = load_app_site(options.site)
    print("\n".join(pin_peers(options.peers, site, options.replace).lines()))
