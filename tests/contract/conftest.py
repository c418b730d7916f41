"""The contract's worlds: each test gets a factory of runs, once for each world that can do what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.driver import Injection, Scenario, WorldDriver
from tests.contract.local_driver import LocalDriver
from tests.contract.sim_driver import SimDriver
from tests.slurm.driver import SlurmDriver, runs_on_slurm

WORLDS: dict[str, type[SimDriver | LocalDriver | SlurmDriver]] = {
    "sim": SimDriver,
    "local": LocalDriver,
    "slurm": SlurmDriver,
}
NEED_ROOT = {"slurm"}

Runs = Callable[[Scenario], WorldDriver]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*injections): what a world must be able to do for this test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that a world cannot run is not made for it; why not stands in that driver's ``cannot``."""
    if "run" not in metafunc.fixturenames:
        return
    needed = {one for mark in metafunc.definition.iter_markers("needs") for one in mark.args}
    assert all(isinstance(one, Injection) for one in needed)
    able = [name for name, world in WORLDS.items() if not needed & set(world.cannot)]
    able = [name for name in able if name != "slurm" or runs_on_slurm(metafunc.function.__name__)]
    marks = {name: [pytest.mark.root, pytest.mark.cluster] if name in NEED_ROOT else [] for name in able}
    metafunc.parametrize("run", [pytest.param(name, marks=marks[name]) for name in able], indirect=True)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    """``run(scenario)``: a run that has been started; all of them are ended afterwards, whatever the test did."""
    made: list[WorldDriver] = []

    def start(scenario: Scenario) -> WorldDriver:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        driver: WorldDriver = WORLDS[request.param](scenario, folder)
        made.append(driver)
        driver.start()
        return driver

    try:
        yield start
    finally:
        for driver in made:
            driver.close()
