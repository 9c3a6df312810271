"""`erosion enroll`: its sub-commands and their output."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion_common.errors import EnrolmentError
from erosion_common.sealed import pinned_keys
from erosion_common.support import expiry
from erosion_common.support.keys import certificate_fingerprint
from erosion_common.support.text import answer_to
from erosion_server.enrolment import certificates, enrolment
from erosion_server.enrolment import federation_folder as federation
from erosion_server.enrolment.certificates import COORDINATOR_DAYS, ServingCertificate
from erosion_server.enrolment.enrolment import COORDINATOR, SITE_DAYS, STANDARD_OUTPUT, Enrolment
from erosion_server.enrolment.federation_folder import FederationFolder, OwnAuthority

MOST_DAYS = 36_500  # a certificate's dates end with the year 9999

Handler = Callable[[argparse.Namespace], None]


def add_enroll_commands(commands: Any) -> None:
    """Add the sub-commands; `options.enroll` is what to call."""

    def command(name: str, handler: Handler, summary: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = commands.add_parser(
            name, help=summary, description=f"{summary.capitalize()}."
        )
        sub.set_defaults(enroll=handler)
        sub.add_argument(
            "--folder",
            type=Path,
            default=federation.DEFAULT_FOLDER,
            help="where the federation is kept (default: %(default)s/)",
        )
        return sub

    init = command("init", _init, "set up a federation: its authority and certificate")
    _add_hosts(init, "names or addresses by which sites reach this machine, the first dialled")
    init.add_argument(
        "--port", type=_port, default=federation.DEFAULT_PORT, help="default: %(default)s"
    )
    _add_days(init, COORDINATOR_DAYS)

    site = command("site", _site, "enrol a hospital, and make the kit to hand to it")
    site.add_argument("name", help="what the study files call it")
    _add_out(site)
    _add_password(site)
    _add_days(site, SITE_DAYS)

    sign = command("sign", _sign, "enrol a hospital from the request that it made")
    sign.add_argument("request", type=Path, help="what `erosion enroll request` made at the site")
    sign.add_argument("--name", help="enrol it under this name (default: the one in the request)")
    sign.add_argument(
        "--replace", action="store_true", help="replace the key that the hospital has, at once"
    )
    _add_out(sign)
    _add_days(sign, SITE_DAYS)

    command("list", _list, "show who is enrolled, and until when")

    peers = command("peers", _peers, "write the hospitals' public keys, for sealed rounds")
    peers.add_argument(
        "--out",
        type=Path,
        default=Path(pinned_keys.NAME),
        metavar="FILE",
        help="where to put them (default: %(default)s)",
    )

    revoke = command("revoke", _revoke, "keep a hospital out from now on")
    revoke.add_argument("name", help="what the study files call it")

    renew = command("renew", _renew, "renew a site's certificate, or the coordinator's")
    renew.add_argument(
        "name",
        nargs="?",
        default=COORDINATOR,
        help="what the study files call it (default: %(default)s)",
    )
    renew.add_argument("--new-key", action="store_true", help="also replace a site's key, at once")
    _add_out(renew)
    _add_password(renew)
    _add_hosts(renew, "for the coordinator: names or addresses in place of the former ones")
    renew.add_argument(
        "--days", type=_days, help="days until it expires (default: as for a new one)"
    )


def _add_hosts(parser: argparse.ArgumentParser, summary: str) -> None:
    parser.add_argument(
        "--host", nargs="+", action="extend", default=[], metavar="NAME_OR_IP", help=summary
    )


def _add_days(parser: argparse.ArgumentParser, days: int) -> None:
    parser.add_argument(
        "--days", type=_days, default=days, help="days until it expires (default: %(default)s)"
    )


def _days(text: str) -> float:
    if not 0 < (days := float(text)) <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text} days; give more than 0 and at most {MOST_DAYS}")
    return days


def _port(text: str) -> int:
    if not 1 <= (port := int(text)) <= 65535:
        raise argparse.ArgumentTypeError(f"there is no port {text}; give one from 1 to 65535")
    return port


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to put the kit (.tar.gz); - prints it, and the rest goes to standard error",
    )


def _add_password(parser: argparse.ArgumentParser) -> None:
    summary = "encrypt the key in the kit, by a password that is printed, to be told by telephone"
    parser.add_argument("--password", action="store_true", help=summary)


def _init(options: argparse.Namespace) -> None:
    folder = FederationFolder(options.folder)
    hosts = _checked_hosts(options.host or _ask_for_hosts())
    place = federation.Address(hosts=hosts, port=options.port)
    passphrase = "" if folder.place.exists() else certificates.chosen_passphrase()
    enrolment.init_federation(folder, place, days=options.days, passphrase=passphrase)
    print(
        f"Made a federation in {folder.path}/. Sites dial {place.address}.\n"
        f"  authority     {_authority_words(folder)}\n"
        f"  coordinator   {ServingCertificate(folder).words}\n"
        f"Keep {folder.authority_key} safe, best on another medium: with it"
        f"{' and its passphrase' if passphrase else ''} anyone can pose as the coordinator.\n"
        "Next: every hospital, this one included, runs `erosion enroll request NAME` and sends"
        f" node.csr; then: erosion enroll sign node.csr{folder.option}"
    )


def _site(options: argparse.Namespace) -> None:
    folder = FederationFolder(options.folder)
    made = enrolment.enrol_site(
        folder, options.name, out=options.out, days=options.days, has_password=options.password
    )
    _print_kit(folder, made, has_key=True)


def _sign(options: argparse.Namespace) -> None:
    folder = FederationFolder(options.folder)
    name = options.name or certificates.read_request(options.request).hospital
    act = enrolment.renew_site if options.replace else enrolment.enrol_site
    made = act(folder, name, request=options.request, out=options.out, days=options.days)
    _print_kit(folder, made, has_key=False)
    if options.replace:
        _print_how_to_install(made.kit, f" --key KEY, the one of {options.request.name}")


def _peers(options: argparse.Namespace) -> None:
    keys = enrolment.write_peers(FederationFolder(options.folder), options.out)
    print(f"Wrote {options.out}, which each site keeps in the folder of its site.toml:")
    width = max(len(key.hospital) for key in keys)
    for key in keys:
        print(f"  {key.hospital:{width}}  {key.fingerprint}")
    print("Let the hospitals compare these with each other: `erosion check` shows what they have.")


def _list(options: argparse.Namespace) -> None:
    folder = FederationFolder(options.folder)
    place = folder.read_place()
    console = Console(highlight=False)
    console.print(Text(f"Sites dial {place.address}."))
    console.print(Text(f"  authority     {_authority_words(folder)}"))
    words = certificates.validity_in_words(certificates.load_certificate(folder.coordinator))
    console.print(Text(f"  coordinator   {words}"))
    table = Table("hospital", "state", "enrolled", "fingerprint")
    keys = federation.read_key_registry(folder.roster).keys
    for key in sorted(keys, key=lambda k: (k.hospital, k.enrolled)):
        held = expiry.in_words(key.expires)
        if key.hospital in place.authorities:
            held = "counts only with its own authority's certificate"
        state = key.trouble or held
        style = "dim" if key.revoked else ("yellow" if expiry.ends_soon(key.expires) else "")
        table.add_row(key.hospital, state, f"{key.enrolled:%Y-%m-%d}", key.fingerprint, style=style)
    for hospital, own in sorted(place.authorities.items()):
        for state, fingerprint, style in _own_authority(folder, hospital, own):
            table.add_row(hospital, Text(state), "", fingerprint, style=style)
    console.print(table)


def _own_authority(
    folder: FederationFolder, hospital: str, own: OwnAuthority
) -> Iterator[tuple[str, str, str]]:
    try:
        issuers, _ = certificates.read_own_authority(folder, hospital, own)
    except EnrolmentError as problem:
        yield str(problem), "", "yellow"
        return
    for issuer in issuers:
        expires = issuer.not_valid_after_utc
        state = f"own authority, for {own.name}: {expiry.in_words(expires)}"
        style = "yellow" if expiry.ends_soon(expires) else ""
        yield state, certificate_fingerprint(issuer), style


def _revoke(options: argparse.Namespace) -> None:
    folder, name = FederationFolder(options.folder), options.name
    revoked = enrolment.revoke_site(folder, name)
    if revoked.key is not None:
        print(f"Revoked the key of {name} ({revoked.key.fingerprint}).")
    if revoked.own_authority:
        print(
            f"Took authorities.{name} out of {folder.place}: its own authority's certificates"
            " count no more."
        )
    print("A running coordinator ends its connection within seconds.")


def _renew(options: argparse.Namespace) -> None:
    folder = FederationFolder(options.folder)
    if options.name == COORDINATOR:
        if options.new_key or options.out or options.password:
            raise EnrolmentError(
                "--new-key, --password and --out are for sites. The coordinator's key is new with"
                " every certificate."
            )
        days = options.days or COORDINATOR_DAYS
        before = folder.read_place()
        place = enrolment.renew_coordinator(folder, _checked_hosts(options.host), days=days)
        print(
            f"Renewed the certificate: {ServingCertificate(folder).words}.\n"
            "A running coordinator shows it from the next connection on."
        )
        if dropped := [host for host in before.hosts if host not in place.hosts]:
            print(
                f"It is not for {', '.join(dropped)} any more: sites with that address cannot"
                f" connect until their coordinator.address is {place.address}. Give all names with"
                " --host to let them."
            )
        return
    if options.host:
        raise EnrolmentError("--host is for the coordinator's certificate; leave it out here.")
    if options.password and not options.new_key:
        raise EnrolmentError("--password is for a kit with a key: add --new-key, or leave it out.")
    made = enrolment.renew_site(
        folder,
        options.name,
        new_key=options.new_key,
        out=options.out,
        days=options.days or SITE_DAYS,
        has_password=options.password,
    )
    _print_kit(folder, made, has_key=options.new_key)
    _print_how_to_install(made.kit)


def _print_how_to_install(kit: Path, key: str = "") -> None:
    is_file = kit != STANDARD_OUTPUT
    print(
        f"At the site: erosion enroll install {kit.name if is_file else 'KIT'} site.toml{key}",
        file=sys.stdout if is_file else sys.stderr,
    )


def _print_kit(folder: FederationFolder, made: Enrolment, *, has_key: bool) -> None:
    caution = (
        f"It holds the site's private key under the password {made.password}\nHand the kit over,"
        " tell the password by telephone, then delete the kit here.\n"
        if made.password
        else "It holds the site's private key: hand it over by a way that nobody else can read,"
        " then delete it here.\n"
        "A site that makes its own key (erosion enroll request) spares you that.\n"
        if has_key
        else "It holds no secret.\n"
    )
    authority = enrolment.authority_fingerprint(folder.authority.read_bytes())
    print(
        f"Enrolled {made.key.hospital}, {expiry.in_words(made.key.expires)}. Its kit: {made.kit}\n"
        f"{caution}"
        f"Compare by telephone: key {made.key.fingerprint}\n"
        f"                      CA  {authority}",
        file=sys.stderr if made.kit == STANDARD_OUTPUT else sys.stdout,
    )


def _authority_words(folder: FederationFolder) -> str:
    certificate = certificates.load_certificate(folder.authority)
    words = expiry.in_words(certificate.not_valid_after_utc)
    return f"{words}, fingerprint {enrolment.authority_fingerprint(folder.authority.read_bytes())}"


def _checked_hosts(hosts: list[str]) -> tuple[str, ...]:
    try:
        return tuple(federation.checked_host(host) for host in hosts)
    except ValueError as problem:
        raise EnrolmentError(f"{problem}.", where=f"--host {' '.join(hosts)}") from None


def _ask_for_hosts() -> list[str]:
    if not sys.stdin.isatty():
        raise EnrolmentError(
            "By which names or addresses do the sites reach this machine? Say so with --host, for"
            " example: --host erosion.example.org 192.0.2.7"
        )
    print("By which names or addresses do the sites reach this machine? The first is dialled.")
    hosts = answer_to("Names or addresses: ").replace(",", " ").split()
    if not hosts:
        raise EnrolmentError("No name was given", remedy="Give at least one, or use --host.")
    return hosts
