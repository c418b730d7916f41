"""``gangrun plan``: what is given counts, what is not is assumed and said, and a run tells what it knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangrun.display.account_page import money_words, share_words, submitted_words
from tests.command_line import Call
from tests.runs.stories import restarted

SEED = ("plan", "--gpus", "1024", "--mtbf", "49h", "--state", "560GB", "--gpu-hour-price", "3")


def test_what_is_given_is_not_assumed(gangrun: Call) -> None:
    found = gangrun(*SEED, "--json").json
    scenario = found["forecast"]["scenario"]
    assert (scenario["mtbf_s"], scenario["state_bytes"], scenario["gpus_count"]) == (49 * 3600, 560e9, 1024)
    assert found["forecast"]["gpus_cost_per_h"] == 3072
    assert not any(option in " ".join(found["assumed"]) for option in ("--mtbf", "--state", "price"))
    told = gangrun(*SEED, "--stall", "30s", "--restart", "5m", "--interval", "2h", "--spares", "1", "--json").json
    assert told["forecast"]["best"]["interval_s"] == pytest.approx(53.9 * 60, rel=0.01)
    assert len(told["assumed"]) == len(found["assumed"]) - 2
    assert "gangrun, --interval" in [one["name"] for one in told["forecast"]["policies"]]


def test_a_page_has_a_row_for_each_policy_and_says_what_was_assumed(gangrun: Call) -> None:
    page = gangrun(*SEED).out
    assert "1024 GPUs on 128 nodes, $3,072 an hour" in page
    assert all(f"\n{name} " in page for name in ("by hand, every hour", "gangrun, every 15 min", "gangrun, best"))
    assert "3 (2.3 % of the nodes) are enough at 99 % of all moments" in page
    assert "assumed, because no option says otherwise:" in page and "(--write-speed)" in page
    other = gangrun(*SEED[:-2], "--spares", "0").out
    assert "0 as you asked; 3 (2.3 %" in other and "$" not in other


def test_a_training_that_cannot_end_is_said_to_be_one(gangrun: Call) -> None:
    page = gangrun("plan", "--gpus", "8", "--mtbf", "1m", "--state", "5TB", "--gpu-hour-price", "3").out
    assert "never" in page


def test_sizes_and_rates_have_two_ways(gangrun: Call) -> None:
    def scenario(*words: str) -> dict[str, float]:
        found = gangrun("plan", "--gpus", "512", *words, "--json").json["forecast"]["scenario"]
        return dict(found)

    assert scenario("--params", "70B")["state_bytes"] == 980e9
    assert scenario("--params", "7B", "--optimizer", "sgd", "--precision", "fp32")["state_bytes"] == 28e9
    assert scenario("--state", "1GiB")["state_bytes"] == 2**30
    assert scenario("--state", "1GB", "--gpu-mtbf", "100000h")["mtbf_s"] / 3600 == pytest.approx(195.3, abs=0.1)
    assert scenario("--state", "1GB")["mtbf_s"] / 3600 == pytest.approx(99, abs=0.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--state", "1GB"], "the number of GPUs is not known"),
        (["--gpus", "8"], "the size of a checkpoint is not known"),
        (["--gpus", "8", "--state", "1GB", "--params", "1B"], "--state and --params exclude each other"),
        (["--gpus", "8", "--state", "1GB", "--mtbf", "1h", "--gpu-mtbf", "1h"], "--mtbf and --gpu-mtbf exclude"),
        (["--gpus", "8", "--state", "much"], "--state: 'much' is not an amount"),
        (["--gpus", "8", "--state", "0"], "--state: '0' must be more than 0"),
        (["--gpus", "8", "--mtbf", "0"], "--mtbf: '0' must be more than 0"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(gangrun: Call, words: list[str], message: str) -> None:
    said = gangrun("plan", *words)
    assert said.code == 2 and message in said.err, said.err


def test_a_run_tells_its_failures_and_its_size(runs: Path, gangrun: Call) -> None:
    story = restarted(runs)
    found = gangrun("plan", "--from", story.run, "--state", "1GB", "--json").json
    scenario = found["forecast"]["scenario"]
    assert found["run"] == story.run and scenario["gpus_count"] == 4
    assert any("1 failure in" in words and "on 2 nodes" in words for words in found["assumed"])
    assert 12 * 3600 <= scenario["mtbf_s"] < 13 * 3600  # one failure a day was expected, and one more came
    more = gangrun("plan", "--from", story.run, "--gpus", "8", "--state", "1GB", "--json").json["forecast"]["scenario"]
    assert more["mtbf_s"] == pytest.approx(scenario["mtbf_s"] / 2)


def test_words_for_shares_money_and_a_submission() -> None:
    assert (share_words(0.9951), share_words(0.99993), share_words(1.0)) == ("99.5 %", "99.993 %", "100.0 %")
    assert (money_words(3072), money_words(12.5)) == ("$3,072", "$12.50")
    assert "--spares 1 is enough at 99 %" in submitted_words(4, 0)
    assert "on 1 node," in submitted_words(1, 1) and "1 spare, enough at" in submitted_words(1, 1)
