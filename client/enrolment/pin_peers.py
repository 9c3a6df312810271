"""Pins the other hospitals' keys at a site: new ones are added, a changed one only by name."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from erosion.client.site_file import AppSite, Site
from erosion.common.errors import EnrolmentError
from erosion.common.sealed import pinned_keys
from erosion.common.sealed.pinned_keys import as_text, read_pinned_keys
from erosion.common.support.files import write_atomically
from erosion.common.support.keys import PublicKey, fingerprint, public_pem


@dataclass(frozen=True, slots=True)
class Pinned:
    """What came of it."""

    path: Path
    added: Mapping[str, PublicKey]
    replaced: Mapping[str, PublicKey]
    refused: Mapping[str, tuple[PublicKey, PublicKey]]  # pinned, and offered

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.added:
            yield f"Pinned in {self.path}; compare each with the hospital itself:"
            yield from (f"  {name}  {fingerprint(key)}" for name, key in self.added.items())
        if self.replaced:
            yield f"Replaced in {self.path}; compare each with the hospital itself:"
            yield from (f"  {name}  {fingerprint(key)}" for name, key in self.replaced.items())
        for name, (pinned, offered) in self.refused.items():
            yield (
                f"Not replaced: {name} has another key here ({fingerprint(pinned)}) than the one"
                f" that was sent ({fingerprint(offered)}). Ask {name} itself which is right, not"
                f" the coordinator; if the new one is, `erosion enroll pin FILE SITE.toml --replace"
                f" {name}`."
            )
        if not (self.added or self.replaced or self.refused):
            yield f"{self.path} holds these keys already."


def pin_peers(offered: Path, site: Site | AppSite, replace: Collection[str] = ()) -> Pinned:
    """Pin what the coordinator sent. Raises EnrolmentError."""
    return pin(read_pinned_keys(offered, EnrolmentError), site, replace)


def pin(
    offered: Mapping[str, PublicKey], site: Site | AppSite, replace: Collection[str] = ()
) -> Pinned:
    """The same of keys that were read; those in `replace` may take another's place."""
    path = site.sealed.peers or Path(pinned_keys.NAME)
    pinned = read_pinned_keys(path, EnrolmentError) if path.exists() else {}
    others = {name: offered[name] for name in sorted(offered) if name != site.name}
    if unknown := sorted(set(replace) - set(others)):
        raise EnrolmentError(f"There is no key of {', '.join(unknown)} among those that were sent.")
    added = {name: key for name, key in others.items() if name not in pinned}
    changed = {
        name: key
        for name, key in others.items()
        if name in pinned and public_pem(key) != public_pem(pinned[name])
    }
    replaced = {name: key for name, key in changed.items() if name in replace}
    refused = {name: (pinned[name], key) for name, key in changed.items() if name not in replace}
    if added or replaced:
        keys = {**pinned, **added, **replaced}
        if problem := pinned_keys.problem_with_owners(keys):
            raise EnrolmentError(f"Nothing is pinned: {problem}")
        try:
            write_atomically(path, as_text(keys))
        except OSError as problem:
            raise EnrolmentError(f"{path} cannot be written: {problem}.") from None
    return Pinned(path, added, replaced, refused)
