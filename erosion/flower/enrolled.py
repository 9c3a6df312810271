"""The node ids that enrolled sites have over our own line."""

from erosion.server.link.sessions import Sessions


def enrolled(*names: str) -> dict[int, str]:
    """Node id -> name, by the names that the sites' certificates hold; for `nodes=`."""
    return {Sessions.node_id(name): name for name in names}
