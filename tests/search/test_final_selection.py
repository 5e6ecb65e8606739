"""Who reaches the final selection, and who there cannot be told from the winner."""

from sim.search.evaluate import Task
from sim.search.final_selection import judge
from sim.search.ranking import Candidate
from sim.search.slices import WHOLE, split_windows
from tests.search.makers import make_runner, make_scenario

SEATS = (1, 2, 3, 4, 8, 64, 128)


def test_the_best_five_are_looked_at_again_and_far_ones_are_not_tied() -> None:
    """Fewer seats than requests that run make first tokens wait for seconds; 64 and 128 seats do the same."""
    scenario = make_scenario()
    runner = make_runner(scenario)
    tasks = [Task({"max_num_seqs": seats}, WHOLE) for seats in SEATS]
    outcomes = runner.run(tasks, "all")
    candidates = [Candidate(task.params, 1, 1, outcome, 1.0) for task, outcome in zip(tasks, outcomes, strict=True)]
    verdict = judge(scenario, candidates, split_windows(60, seed=0), runner, seed=0)
    assert verdict
    found = [one.candidate.params["max_num_seqs"] for one in verdict.finalists]
    assert len(found) == 5
    assert found[0] in {64, 128}
    assert not {64, 128} <= set(found)
    assert 1 not in found
    assert verdict.tied == ()
