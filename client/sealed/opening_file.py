"""The newest opening of a site: its secret, for a person there to show in an audit."""

from dataclasses import dataclass
from pathlib import Path

from erosion.common.errors import SiteError
from erosion.common.sealed.audit.opening import Opening

NAME = "opening.safetensors"


@dataclass(frozen=True, slots=True)
class OpeningFile:
    """In the site's own folder; nothing is kept where there is none."""

    folder: Path | None

    def write(self, opening: Opening) -> None:
        """Replace the last one. It is not waited for: without it an audit is only poorer."""
        if self.folder is None:
            return
        path = self.folder / NAME
        temporary = path.with_suffix(".new")
        try:
            temporary.touch(mode=0o600)
            opening.write(temporary)
            temporary.replace(path)
        except OSError as problem:
            raise SiteError(
                f"What an audit would need cannot be written to {path}: {problem}. Make the folder"
                " writable (compute.state in the site file)."
            ) from None
