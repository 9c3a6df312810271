"""The site file: one hospital's data, its coordinator, and its own limits."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from erosion_client.dataset.sources import AnySource
from erosion_client.records.account import claim, state_folder
from erosion_common.errors import SiteError
from erosion_common.formats.sent_log import LEAST_KEEP_DAYS
from erosion_common.learning.pretrained import FOLDER
from erosion_common.sealed import pinned_keys
from erosion_common.settings.base import Settings, read_toml, validate
from erosion_common.settings.names import HospitalName, Name, Sha256
from erosion_common.support.network import checked_address


def _checked_proxy(value: str) -> str:
    address = value.removeprefix("http://").rstrip("/")
    if value.startswith("https://"):
        raise ValueError(
            "a proxy that is itself reached by TLS is not supported; name its http port"
        )
    return checked_address(address.rpartition("@")[2]) and address if address else ""


def checked_device(value: str) -> str:
    """Return what training may run on. Raises ValueError."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,2})?", value):
        raise ValueError('it must be "cpu", "cuda" or "cuda:N"')
    return value


class CoordinatorAddress(Settings):
    """The address and keys for connecting to the coordinator."""

    address: Annotated[str, AfterValidator(checked_address)] = Field(  # host:port
        description="`host:port` of the coordinator."
    )
    root_certificate: Path | None = Field(
        default=None,
        description="The authority to trust: `ca.crt` of the site kit. Left out: no encryption, "
        "which is allowed only on this machine.",
    )
    certificate: Path | None = Field(
        default=None,
        description="The certificate by which the coordinator knows this hospital: `node.crt` of "
        "the site kit.",
    )
    private_key: Path | None = Field(
        default=None, description="The certificate's key: `node.key` of the site kit."
    )
    proxy: Annotated[str, AfterValidator(_checked_proxy)] | None = Field(
        default=None,
        repr=False,
        description="`host:port` of an HTTP proxy that offers CONNECT. Left out: what the "
        'environment variable `https_proxy` says. `""`: none.',
    )

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        files = (self.root_certificate, self.certificate, self.private_key)
        if any(files) and not all(files):
            raise ValueError(
                "root_certificate, certificate and private_key go together; the site kit has"
                " all three"
            )
        return self

    def beside(self, folder: Path) -> Self:
        """Return the same with paths that are relative to `folder`."""
        files = {
            key: getattr(self, key) for key in ("root_certificate", "certificate", "private_key")
        }
        return self.model_copy(
            update={key: path and _path_beside(folder, path) for key, path in files.items()}
        )


class Limits(Settings):
    """What this hospital will take part in. It declines everything else, for any coordinator."""

    min_patients: int = Field(
        default=10, ge=1, description="Training patients that a study must have here, at least."
    )
    min_cell: int = Field(
        default=10,
        ge=3,
        le=100,
        description="No figure that leaves is about fewer patients (counts, sums, quantiles, "
        "test parts), and no update as a whole. Public data can do with 3.",
    )
    min_class: int = Field(
        default=1,
        ge=1,
        description="Training patients that each class must have here, unless it has none; in a "
        "survival study each interval of time in which a follow-up ends, with the event and "
        "without; likewise each category of a column in `interactions`. "
        "A patient who is alone in one can be read from an update without noise, also "
        "from a sealed one where the other hospitals have nobody there; such a study is declined. "
        "Counted are all who are trained on, also where a fold is held out: a round of a few "
        "`steps`, or a method that trains on a part, may see fewer. A refusal discloses that "
        "there is such a class; other `cut_points` count for `budget.variants`. 1: no such rule.",
    )
    min_local_steps: int = Field(
        default=2,
        ge=1,
        description="Mini-batches that a round must have here, at least, also where a method "
        "trains on a part of the patients. One step is one gradient, and a gradient of few "
        "patients can be turned back into them.",
    )
    min_batch_size: int = Field(
        default=2,
        ge=1,
        description="Rows or images that a mini-batch must have, at least, and a study or a "
        "method's part of the patients in all. Where the last batch of a pass has fewer, it "
        "shares those of the one before, or is one with it.",
    )
    max_rounds: int | None = Field(
        default=None,
        ge=1,
        description="Most rounds that an arm may have. In the trials of a study with "
        "`[selection]` it has one more than `rounds`. Left out: any number.",
    )
    max_parameters: int = Field(
        default=200_000_000,
        ge=1,
        le=1_000_000_000,
        description="Parameters that a model may have, frozen ones too. Training takes about 40 "
        "bytes of memory for each. An installed model is not counted.",
    )
    studies: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Names of studies that are allowed; `*` stands for anything.",
    )
    models: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Names of models that are allowed; `*` stands for anything.",
    )
    installed_models: dict[str, Sha256] = Field(
        default_factory=dict,
        description="Entry points that may be run here, by name, with the hash of their "
        "package's files (`erosion models` prints it).",
    )
    installed_methods: dict[str, Sha256] = Field(
        default_factory=dict, description="Methods of packages that may be run here, likewise."
    )
    installed_tasks: dict[str, Sha256] = Field(
        default_factory=dict, description="Tasks of packages that may be run here, likewise."
    )
    as_user: bool = Field(
        default=True,
        description="Whether a study may be for this hospital. Its own test figures and personal "
        "parameters then go to the coordinator.",
    )
    validation: bool = Field(
        default=True,
        description="Whether this hospital measures another one's final model on its own "
        "patients, where an approved study asks for that. Rounded figures over all of them then "
        "go to the coordinator.",
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="The most that one study may cost each patient here, over all its runs: "
        "epsilon of differential privacy. Every study without that promise is then declined, and "
        "every study that makes this hospital the user. Left out: both are accepted.",
    )
    delta: float = Field(
        default=1e-5,
        gt=0,
        le=1e-3,
        description="The delta at which this hospital works out epsilon. It must be below 1 / "
        "patients.",
    )
    sealed_only: bool = Field(
        default=False,
        description="Whether studies whose rounds are not sealed are refused. In a sealed one "
        "the updates leave under masks; counts, the distance, single numbers that the method "
        "needs and figures of columns (`erosion describe`) leave in the clear. As the user, a "
        "hospital's own updates do, too; `as_user = false` refuses that.",
    )
    min_summed: int = Field(
        default=3,
        ge=3,
        le=65_536,
        description="Hospitals, this one included, that remain in a sealed sum when any one has "
        "subtracted its own update to help the coordinator: so a sum has one more. Counted are "
        "those with a tenth of the largest weight or more. With k helpers `min_summed` + 1 - k "
        "remain.",
    )
    largest_share: float = Field(
        default=0.5,
        gt=0,
        le=0.5,
        description="Share of the largest weight in a sealed sum without any one "
        "hospital. With k helpers it may be `largest_share` / (1 - (k - 1) `largest_share`): "
        "for half, choose 1 / (k + 1).",
    )
    summed_with: tuple[Name, ...] = Field(
        default=(),
        description="Hospitals that people here know: `min_summed` and `largest_share` are then "
        "kept among these and this one, because a coordinator can subtract the updates of "
        "hospitals that it enrolled itself. The others of a sum receive this list, and keep the "
        "rule where this one cannot. Where more than about a third of a round are not among these "
        "it takes no part: they could remove its masks. Left out: every hospital with a key in "
        "`peers.pem` counts.",
    )
    largest_round: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of its training patients that one sealed round without `[privacy]` "
        "may go over. The larger it is, the more alike its updates are, and the more two sums "
        "with and without it disclose.",
    )


class Sealed(Settings):
    """What a site needs for sealed rounds besides its own key."""

    peers: Path | None = Field(
        default=None,
        description="The other hospitals' public keys. Left out: `peers.pem` next to "
        "the site file.",
    )
    private_key: Path | None = Field(
        default=None,
        description="The key that signs, where no hospital is enrolled. Left out: the one by "
        "which the coordinator knows this hospital.",
    )


class Approval(Settings):
    """Who decides whether this hospital takes part in a study."""

    automatic: Literal["never", "within_limits"] = Field(
        default="never",
        description='`"never"`: a person approves every study (`erosion review`). '
        '`"within_limits"`: every study that the limits allow is approved; for a testbed, or '
        "where a contract says so.",
    )
    people: Literal[1, 2] = Field(
        default=1,
        description="How many people approve a study. Two log in by different accounts of the "
        "operating system, which are recorded; one alone can decline.",
    )

    @model_validator(mode="after")
    def _two_people_are_no_rule(self) -> Self:
        if self.people == 2 and self.automatic != "never":
            raise ValueError('people = 2 goes with automatic = "never" only')
        return self


class Budget(Settings):
    """How much of this hospital's data may be used up; kept on its disk, for good."""

    studies: int = Field(  # approved
        default=50,
        ge=1,
        description="Most studies that are approved at a time, by a person or by the limits.",
    )
    runs_per_study: int = Field(
        default=5,
        ge=1,
        description='Runs of one study that are answered; with `user = "all"`, this many for '
        "each of its users.",
    )
    rounds: int = Field(
        default=20_000,
        ge=1,
        description="Rounds answered for one coordinator, over all studies. Each round of each "
        "arm counts once, however many messages it takes; those of trials and folds count, too.",
    )
    evaluations: int = Field(
        default=100, ge=1, description="Final figures given to one coordinator, over all studies."
    )
    sets: int = Field(
        default=50,
        ge=1,
        description="Different sets of patients about whom figures of one column are given, "
        "to all coordinators together.",
    )
    variants: int = Field(
        default=4,
        ge=1,
        description="Different ranges, categories or policies of one column that are compared "
        "with the data for one coordinator: each discloses whether the largest value fits. "
        "`winsorise`, `log` and `knots` count as well, and at the user the groups of "
        "`evaluation.subgroups`: two sums or groups with other cuts disclose who is between.",
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="The most that all studies with differential privacy together may cost each "
        "patient of these data, for all coordinators together. Left out: as much as "
        "`limits.epsilon` allows for one study.",
    )


class Log(Settings):
    """How the log of what was sent is kept."""

    keep_days: int = Field(
        default=3650,
        ge=LEAST_KEEP_DAYS,
        le=36_500,
        description="Days that a full file is kept, at least: until another one, begun that many "
        "days after its last line, is full, too.",
    )
    file_megabytes: int = Field(default=16, ge=1, le=1024, description="Then another is begun.")


class Compute(Settings):
    """What training may use of this machine."""

    threads: int = Field(default=1, ge=1, le=1024, description="Threads that training uses.")
    device: Annotated[str, AfterValidator(checked_device)] = Field(
        default="cpu", description='`"cpu"`, `"cuda"` or `"cuda:N"`. `erosion check` tries it.'
    )
    state: Path | None = Field(
        default=None,
        description="Folder for what methods keep here between rounds, for approvals and "
        "budgets, and for the held-out predictions of the runs that it is the user of. Left out: "
        "where another kit of this hospital keeps them for the same data, or else `state` in the "
        "folder of the site file.",
    )
    account: HospitalName | None = Field(
        default=None,
        description="Name under which approvals and budgets of these data are kept. Write it where "
        "another federation has another name for this hospital. Left out: `name`.",
    )
    public_order: bool = Field(
        default=False,
        description="Whether local randomness does without this site's secret, and mini-batches "
        "come in the file's order where a study asks for that: for repeatable testbeds.",
    )
    weights: Path | None = Field(
        default=None,
        description="Folder with the files that models start from. Left out: `weights` in the "
        "folder of the site file.",
    )


AppConfig = dict[str, str | int | float | bool]


class AppSite(Settings):
    """The part of a site file for connecting an app and for installing keys."""

    name: HospitalName = Field(description="The hospital's name in studies.")
    coordinator: CoordinatorAddress = Field(
        description="The coordinator's address, and the keys for it."
    )
    records: Path | None = Field(
        default=None,
        description="Folder for the log of what was sent, and the status. Left out: "
        "`records/NAME` in the folder of the site file.",
    )
    log: Log = Field(default=Log(), description="How the log of what was sent is kept.")
    sealed: Sealed = Field(
        default=Sealed(), description="What a site needs for sealed rounds besides its own key."
    )
    app: AppConfig = Field(
        default_factory=dict,
        description="What an app that is served in place of this program finds in its "
        "`context.node_config`; see [Flower](flower.md#over-our-link).",
    )

    @property
    def records_folder(self) -> Path:
        """The folder of the log of what was sent, and of the status."""
        return self.records or Path("records") / self.name


class Site(AppSite):
    """One hospital. See `erosion schema site` for the same as a JSON schema."""

    data: AnySource = Field(
        description="Where the patients are, and how the hospital's own words map to the study's. "
        "Without `source` its kind is judged by `path` or `url`."
    )
    limits: Limits = Field(
        default=Limits(),
        description="What this hospital will take part in. It declines everything else, for any "
        "coordinator.",
    )
    approval: Approval = Field(
        default=Approval(), description="Who decides whether this hospital takes part in a study."
    )
    budget: Budget = Field(
        default=Budget(),
        description="How much of this hospital's data may be used up; kept on its disk, for good.",
    )
    compute: Compute = Field(
        default=Compute(), description="What training may use of this machine."
    )

    @property
    def lifetime_epsilon(self) -> float | None:
        """The most that all studies together may cost a patient; None: there is no limit."""
        return self.budget.epsilon or self.limits.epsilon

    @property
    def account(self) -> str:
        """The name under which budgets are kept."""
        return self.compute.account or self.name

    @property
    def consent_folder(self) -> Path:
        """The folder of approvals and budgets, and of the state of methods."""
        return (self.compute.state or Path("state")) / self.account


def load_site(path: Path) -> Site:
    """Read a site file; paths in it are relative to it. Raises SiteError with every problem."""
    raw = read_toml(path, "site file", SiteError)
    site = validate(Site, raw, f"Site file {path}", SiteError)
    with _homes_known(path):
        return _beside(site, path.resolve().parent)


def load_with_account(path: Path) -> Site:
    """Read a site file, and note where its data have their account. Raises SiteError."""
    site = load_site(path)
    try:
        claim(site)
    except SiteError:  # another program of the hospital began it meanwhile: now it is known
        site = load_site(path)
        claim(site)
    return site


def load_app_site(path: Path) -> AppSite:
    """Read what connecting needs; keys that only studies need may be missing or wrong."""
    raw = read_toml(path, "site file", SiteError)
    for_studies = Site.model_fields.keys() - AppSite.model_fields.keys()
    used = {key: value for key, value in raw.items() if key not in for_studies}
    site = validate(AppSite, used, f"Site file {path}", SiteError)
    with _homes_known(path):
        return site.model_copy(update=_common_beside(site, path.resolve().parent))


def is_for_app(path: Path) -> bool:
    """Return whether it has an app's table and no data, so that it only serves an app."""
    raw = read_toml(path, "site file", SiteError)
    return "app" in raw and "data" not in raw


@contextmanager
def _homes_known(path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError:  # of Path.expanduser
        raise SiteError(
            "a path begins with ~, and that home is not known here",
            where=f"Site file {path}",
            remedy="Write the whole path.",
        ) from None


def _beside(site: Site, folder: Path) -> Site:
    data, stated = site.data.beside(folder), site.compute.state
    stated = stated and _path_beside(folder, stated)
    state = state_folder(site.account, data, stated, folder / "state")
    weights = _path_beside(folder, site.compute.weights or Path(FOLDER))
    compute = site.compute.model_copy(update={"state": state, "weights": weights})
    changes = {**_common_beside(site, folder), "data": data, "compute": compute}
    return site.model_copy(update=changes)


def _common_beside(site: AppSite, folder: Path) -> dict[str, Any]:
    own_key = site.sealed.private_key
    return {
        "records": _path_beside(folder, site.records_folder),
        "coordinator": site.coordinator.beside(folder),
        "sealed": Sealed(
            peers=_path_beside(folder, site.sealed.peers or Path(pinned_keys.NAME)),
            private_key=None if own_key is None else _path_beside(folder, own_key),
        ),
    }


def _path_beside(folder: Path, written: Path) -> Path:
    return folder / written.expanduser()
