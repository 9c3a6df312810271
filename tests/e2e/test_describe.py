"""`erosion describe` over gRPC: sites answer if somebody there approved the study."""

from pathlib import Path

from erosion_server.description.ask import ask_all
from erosion_server.description.page import description_page
from tests.support import programs
from tests.support.federation import Federation, small_study
from tests.support.html_page import Page
from tests.support.patience import PATIENCE


def test_hospitals_are_compared_before_any_training_and_who_declines_is_named(
    tmp_path: Path,
) -> None:
    study = small_study(arms={"fedavg": {}})
    with Federation(study, tmp_path) as federation:
        for name in ("alice", "bob"):
            federation.start_site(name)
        data = federation.folder / "bob" / "data.csv"
        carol = federation.site_file("carol")
        carol.write_text(carol.read_text() + '[limits]\nstudies = ["others"]\n')
        lines = [line.split(",") for line in data.read_text().splitlines()]
        wrong = [lines[0], *([f"{float(age) + 10:.2f}", *rest] for age, *rest in lines[1:])]
        data.write_text("\n".join(map(",".join, wrong)) + "\n")
        federation.start_program("carol", programs.honest, carol)
        found = ask_all(study, federation.link, PATIENCE)
    assert set(found.replies) == {"alice", "bob"}
    assert "limits.studies" in found.declined["carol"]
    assert found.missing == []
    assert found.replies["bob"].min_cell == 10
    assert {(f.column, f.hospital) for f in found.misfits} >= {("age", "bob")}
    page = Page(description_page(found)).text
    assert "2 of 3 hospitals described" in page
    assert "limits.studies" in page
