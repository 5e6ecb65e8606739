"""What holds of every run, whatever the workload: each law is a function that asserts it."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np

from tests.engine.moments import moments
from tests.makers import Run
from tests.workloads import Workload


def every_request_completes_or_is_rejected(workload: Workload, done: Run) -> None:
    """Arrived = completed + rejected; the completed have all their tokens, the rejected none."""
    requests = done.records.requests
    rejected = np.isin(np.arange(len(requests)), list(requests.rejected))
    room = np.maximum(0, workload.config.max_model_len - workload.trace.prompt_tokens)
    assert (requests.output_tokens == np.minimum(workload.trace.output_tokens, room)).all()
    assert (requests.generated_tokens == np.where(rejected, 0, requests.output_tokens)).all()
    for times in (requests.first_scheduled_s, requests.first_token_s, requests.finish_s):
        assert (np.isnan(times) == rejected).all()


def causes_come_before_effects(workload: Workload, done: Run) -> None:
    """Arrival <= first scheduled < first token <= finish, and the last two coincide only for a single token."""
    requests = done.records.requests
    kept = ~np.isnan(requests.finish_s)
    times = (requests.arrival_s, requests.first_scheduled_s, requests.first_token_s, requests.finish_s)
    arrival, scheduled, first, last = (column[kept] for column in times)
    assert (requests.arrival_s == workload.trace.arrival_s).all()
    assert (arrival <= scheduled).all()
    assert (scheduled < first).all()
    assert ((first < last) == (requests.generated_tokens[kept] > 1)).all()


def the_clock_runs_forward(workload: Workload, done: Run) -> None:
    """Steps run one after the other, each as long as the step-time model says or as less is read in common, none before it is scheduled."""
    clock = free_s = 0.0
    model = workload.step_time
    for step in done.steps:
        context = sum(tokens + computed for _, tokens, computed, _ in step["sched"])
        length = model.base_ns + model.per_token_ns * step["n"] + model.per_ctx_ns * context
        assert step["ctx"] == context
        assert step["t"] >= clock
        assert step["start"] == max(step["t"], free_s)
        spared = (length if step["sched"] else 0) - (step["end"] - step["start"])
        assert spared == 0 or (workload.config.common_reads and 0 < spared <= model.per_ctx_ns * context)
        clock, free_s = step["t"], step["end"]


def nothing_idles_while_something_could_run(workload: Workload, done: Run) -> None:
    """The engine pauses only when all that has arrived is done, and goes on the moment that somebody arrives."""
    requests = done.records.requests
    kept = ~np.isnan(requests.finish_s)
    arrival, finish = requests.arrival_s[kept], requests.finish_s[kept]
    idle_since = -1.0
    for step in done.steps:
        if step["start"] > idle_since:
            assert step["start"] in arrival
            assert (finish[arrival < step["start"]] <= max(idle_since, 0)).all()
        idle_since = max(idle_since, step["end"])
    assert workload.config.num_batches_in_flight == 2 or all(step["t"] == step["start"] for step in done.steps)


def limits_are_kept(workload: Workload, done: Run) -> None:
    """Tokens a step, requests at once, blocks."""
    config = workload.config
    for step in done.steps:
        assert step["n"] == sum(row[1] for row in step["sched"]) <= config.token_budget
        assert all(row[1] > 0 for row in step["sched"])
        assert len(step["running"]) <= config.max_running
        assert 0 <= step["free"] <= config.num_usable_blocks
        assert 0 <= step["free_after"] <= config.num_usable_blocks


def running_is_ordered_by_admission(workload: Workload, done: Run) -> None:
    """Batches follow the running list; who is let in goes to its end, and nobody is both running and waiting."""
    for moment in moments(workload, done):
        step = moment.step
        kept = [name for name in moment.running if name not in step["preempted"]]
        assert step["running"] == kept + moment.admitted
        scheduled = [row[0] for row in step["sched"]]
        assert scheduled == [name for name in step["running"] if name in scheduled]
        assert not set(step["running"]) & set(step["waiting"])


def the_queue_is_served_in_order(workload: Workload, done: Run) -> None:
    """Admission takes from the head; the preempted go to the front, or by priority to where they belong."""
    rank = _ranks(workload)
    for moment in moments(workload, done):
        step = moment.step
        queue = [*reversed(step["preempted"]), *moment.queue]
        if workload.config.engine.scheduling_policy != "fcfs":
            queue.sort(key=rank.__getitem__)
        assert moment.admitted + step["waiting"] == queue
        assert sorted(moment.admitted) == sorted(step["new"] + step["resumed"])
        assert not (step["preempted"] and moment.admitted)


def _ranks(workload: Workload) -> dict[str, Any]:
    """In what order requests wait, where it is not that of their arrival."""
    trace, most = workload.trace, workload.config.max_model_len
    if workload.config.engine.scheduling_policy == "sjf":
        lengths = np.minimum(trace.prompt_tokens + trace.output_tokens, most).tolist()
        jobs = zip(lengths, trace.arrival_s.tolist(), range(len(trace)), strict=True)
        return dict(zip(trace.request_id, jobs, strict=True))
    priority = [0] * len(trace) if trace.priority is None else trace.priority.tolist()
    columns = zip(priority, trace.arrival_s.tolist(), trace.request_id, strict=True)
    return dict(zip(trace.request_id, columns, strict=True))


def victims_are_chosen_by_policy(workload: Workload, done: Run) -> None:
    """FCFS preempts the last of the running; priority the largest (priority, arrival), the first among equals."""
    rank = _ranks(workload)
    for moment in moments(workload, done):
        left = list(moment.running)
        for victim in moment.step["preempted"]:
            by_priority = workload.config.engine.scheduling_policy == "priority"
            assert victim == (max(left, key=lambda name: rank[name][:2]) if by_priority else left[-1])
            left.remove(victim)


def tokens_are_granted_greedily(workload: Workload, done: Run) -> None:
    """In order, each gets what it wants within its cap and the budget left, or less for a state's sake; a row that reaches the end samples."""
    for moment in moments(workload, done):
        longest = moment.longest_chunk(workload.config)
        budget = workload.config.token_budget
        sampled = []
        for name, tokens, computed, _ in moment.step["sched"]:
            wanted = min(moment.known[name] - computed, longest)
            assert tokens <= wanted
            is_greedy = not (moment.step["preempted"] or workload.config.keeps_states)
            assert tokens == min(wanted, budget) if is_greedy else 0 < tokens <= budget
            budget -= tokens
            sampled += [name] * (tokens + computed == moment.known[name])
        assert moment.step["sampled"] == sampled


def nothing_is_computed_twice_or_left_out(workload: Workload, done: Run) -> None:
    """A row goes on where the last one ended, or after an admission at what the prefix cache held of it."""
    block_size = workload.config.block_size
    for moment in moments(workload, done):
        hits = moment.step["hits"]
        assert set(hits) <= set(moment.admitted)
        assert workload.config.engine.enable_prefix_caching or not hits
        for name, _, computed, _ in moment.step["sched"]:
            assert computed == (hits.get(name, 0) if name in moment.admitted else moment.computed[name])
        for name, tokens in hits.items():
            assert 0 < tokens < moment.known[name]
            assert tokens % block_size == 0


def every_token_is_accounted_for(workload: Workload, done: Run) -> None:
    """Samples make up the outputs, at the ends of their steps; gaps make up the time from first token to last."""
    requests = done.records.requests
    times: dict[str, list[float]] = {name: [] for name in workload.trace.request_id}
    for step in done.steps:
        for name in step["sampled"]:
            times[name].append(step["end"])
        assert step["finished"] == [name for name in step["sampled"] if done.of(name, "finish_s") == step["end"]]
    assert [len(ends) for ends in times.values()] == requests.generated_tokens.tolist()
    for name, ends in times.items():
        assert not ends or (ends[0], ends[-1]) == (done.of(name, "first_token_s"), done.of(name, "finish_s"))
    assert done.gaps == Counter(gap for ends in times.values() for gap in np.diff(ends).tolist())


def blocks_are_conserved(workload: Workload, done: Run) -> None:
    """All are free after the run; with full attention each request's table grows to what its tokens fill, beside states that it has throughout."""
    config = workload.config
    assert not done.steps or done.steps[-1]["free_after"] == config.num_usable_blocks
    if any(group.window for group in config.kv_groups):
        return
    for moment in moments(workload, done):
        for name, tokens, computed, new_blocks in moment.step["sched"]:
            grown = -(-(computed + tokens) // config.block_size) - -(-computed // config.block_size)
            states = config.num_state_blocks if name in moment.admitted else 0
            assert new_blocks == grown * len(config.kv_groups) + states
        tables = [-(-moment.computed_after[name] // config.block_size) for name in moment.step["running"]]
        held = config.num_usable_blocks - moment.step["free"] - config.num_state_blocks * len(tables)
        assert held <= sum(tables) * len(config.kv_groups)
        assert config.engine.enable_prefix_caching or held == sum(tables) * len(config.kv_groups)


def nobody_waits_without_a_reason(workload: Workload, done: Run) -> None:
    """With full attention and no cache: whoever heads the queue after a pass had no budget, no seat or no blocks."""
    config = workload.config
    if config.engine.enable_prefix_caching or any(group.window for group in config.kv_groups):
        return
    for moment in moments(workload, done):
        step = moment.step
        budget = config.token_budget - step["n"]
        if step["preempted"] or not step["waiting"] or not budget or len(step["running"]) == config.max_running:
            continue
        known = moment.known[step["waiting"][0]]
        chunk = min(known, moment.longest_chunk(config))
        held_up = chunk > budget and not config.engine.enable_chunked_prefill
        tokens = known if config.engine.scheduler_reserve_full_isl else min(chunk, budget)
        needed = -(-tokens // config.block_size) * len(config.kv_groups) + config.num_state_blocks
        reserve = config.watermark_blocks if step["running"] else 0
        assert held_up or needed + reserve > step["free"]


def records_agree_with_the_log(workload: Workload, done: Run) -> None:
    """Columns of steps, counts of requests and totals say what the log says."""
    steps = [step for step in done.steps if step["sched"]]
    ones = [sum(row[1] == 1 for row in step["sched"]) for step in steps]
    columns = done.records.steps
    assert columns.start_s.tolist() == [step["start"] for step in steps]
    assert columns.end_s.tolist() == [step["end"] for step in steps]
    assert columns.num_decodes.tolist() == ones
    assert columns.num_chunk_tokens.tolist() == [step["n"] - one for step, one in zip(steps, ones, strict=True)]
    assert columns.num_sampled.tolist() == [len(step["sampled"]) for step in steps]
    chunks = [[(row[1], row[2]) for row in step["sched"] if row[1] > 1] for step in steps]
    assert columns.num_chunks.tolist() == list(map(len, chunks))
    assert list(zip(columns.chunk_tokens, columns.chunk_computed_tokens, strict=True)) == list(chain(*chunks))
    contexts = [sum(1 + row[2] for row in step["sched"] if row[1] == 1) for step in steps]
    if workload.config.common_reads is None:
        assert columns.decode_context_tokens.tolist() == contexts
    else:
        assert (columns.decode_context_tokens <= np.array(contexts)).all()
    assert columns.num_running.tolist() == [len(step["running"]) for step in steps]
    assert columns.num_waiting.tolist() == [len(step["waiting"]) for step in steps]
    assert columns.num_free_blocks.tolist() == [step["free"] for step in steps]
    assert columns.num_preempted.tolist() == _preempted_up_to_each_step(done)
    assert columns.num_preempted.sum() == done.records.requests.num_preemptions.sum()
    assert done.records.num_evictions == sum(step["evicted"] for step in done.steps)


def _preempted_up_to_each_step(done: Run) -> list[int]:
    """Those of passes that only preempted are counted with the next step."""
    counts, pending = [], 0
    for step in done.steps:
        pending += len(step["preempted"])
        if step["sched"]:
            counts.append(pending)
            pending = 0
    return counts


def lives_agree_with_the_log(workload: Workload, done: Run) -> None:
    """Each arrives and is let in once, when its record says, and is put back as often as its record says."""
    requests = done.records.requests
    entered = {name: step for step in done.steps for name in step["new"]}
    put_back = Counter(name for step in done.steps for name in step["preempted"])
    kept = [name for row, name in enumerate(workload.trace.request_id) if row not in requests.rejected]
    assert [name for step in done.steps for name in step["arrived"]] == kept
    assert sorted(name for step in done.steps for name in step["new"]) == sorted(kept)
    assert all(done.of(name, "first_scheduled_s") == step["t"] for name, step in entered.items())
    assert all(done.of(name, "num_cached_tokens") == step["hits"].get(name, 0) for name, step in entered.items())
    assert [put_back[name] for name in workload.trace.request_id] == requests.num_preemptions.tolist()
    assert done.records.prefix_cache_hits == requests.num_cached_tokens.sum()
    assert done.records.prefix_cache_queries == sum(done.of(name, "prompt_tokens") for name in kept)


LAWS = (
    every_request_completes_or_is_rejected,
    causes_come_before_effects,
    the_clock_runs_forward,
    nothing_idles_while_something_could_run,
    limits_are_kept,
    running_is_ordered_by_admission,
    the_queue_is_served_in_order,
    victims_are_chosen_by_policy,
    tokens_are_granted_greedily,
    nothing_is_computed_twice_or_left_out,
    every_token_is_accounted_for,
    blocks_are_conserved,
    nobody_waits_without_a_reason,
    records_agree_with_the_log,
    lives_agree_with_the_log,
)
