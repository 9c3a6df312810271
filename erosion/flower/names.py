"""The hospital of each of Flower's nodes."""

from collections import Counter
from collections.abc import Collection, Mapping

from erosion.common.support.text import printable

MOST_CHARACTERS = 100


class Names:
    """Binds names to node ids: what a node says first holds for as long as it is connected.

    Flower's node ids change where a node registers anew, unless its key is registered; what is
    remembered of a hospital therefore belongs to its name.
    """

    def __init__(self, known: Mapping[int, str] | None) -> None:
        """`known`: the coordinator's own list, which no node's word changes; None: their word."""
        self._known = None if known is None else {n: str(name) for n, name in known.items()}
        self.of_node: dict[int, str] = dict(self._known or {})

    def hear(self, said: Mapping[int, str], connected: Collection[int]) -> dict[int, str]:
        """What nodes call themselves. Returns the nodes that are not believed, and why."""
        problems: dict[int, str] = {}
        new: dict[int, str] = {}
        for node, name in said.items():
            own = self.of_node.get(node)
            if own is not None and name != own:
                problems[node] = f"calls itself {name!r}; its name is {own!r}"
            elif own is None and self._known is not None:
                problems[node] = "is not among `nodes`, the nodes that take part"
            elif own is None:
                new[node] = name
        taken = {name for node, name in self.of_node.items() if node in connected}
        times = Counter(new.values())
        for node, name in new.items():
            if name in taken:
                problems[node] = f"calls itself {name!r}, as another node does"
            elif times[name] > 1:
                problems[node] = f"calls itself {name!r}, as another node does in the same round"
            else:
                self._bind(node, name)
        return problems

    def _bind(self, node: int, name: str) -> None:
        for gone in [n for n, held in self.of_node.items() if held == name]:
            del self.of_node[gone]  # it has come back as another node
        self.of_node[node] = name

    def node_of(self, name: str) -> int | None:
        """The node that a name belongs to."""
        return next((node for node, held in self.of_node.items() if held == name), None)


def shown(name: object) -> str:
    """A name as a site gives it, fit to be shown."""
    return printable(str(name))[:MOST_CHARACTERS]
