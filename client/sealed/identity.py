"""The keys that a site has in sealed rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from erosion.common.support.keys import PrivateKey, PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """The site's node key, and those of the hospitals that it would be summed with, pinned."""

    name: str
    node_key: PrivateKey
    peer_keys: Mapping[str, PublicKey] = field(default_factory=dict)
