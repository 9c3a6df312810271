"""Checks that the machine has what the site file lets training use."""

import torch

from erosion.client.finding import Finding, failed, ok
from erosion.client.site_file import Site


def check_compute(site: Site) -> Finding:
    """The device can be used now, so that no study begins and then fails."""
    what, device = "compute", site.compute.device
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        return failed(
            what,
            f'compute.device = "{device}" cannot be used: {reason}',
            'write device = "cpu" under [compute], or repair the driver and install a torch for it',
        )
    return ok(what, f"{device}, {site.compute.threads} thread(s)")
