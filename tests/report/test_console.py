from sim.metrics.slo import slo_figures
from sim.metrics.summary import summarize
from sim.report.console import WIDTH, result_table
from sim.specs.slo import Slo, limits_json
from tests.metrics.makers import DISPATCH, Life, Step, make_records

COMPLETED = Life(first_token_s=0.25, finish_s=2.25, prompt_tokens=300, output_tokens=101)
SLOS = (Slo("ttft", 50.0, 0.5), Slo("ttft", 99.0, 0.5))


def test_the_table_reads_like_that_of_vllm_bench_serve() -> None:
    """The lines that existing scripts grep for: label, colon, figure from column 41 on, two decimals."""
    records = make_records(COMPLETED, steps=(Step(0.0, 2.25),), itl_s={0.02: 100})
    summary = summarize(records, num_gpu_blocks=11, dispatch=DISPATCH)
    lines = result_table(summary).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     1"
    assert "Total generated tokens:                  101" in lines
    assert "Output token throughput (tok/s):         44.89" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "Mean TTFT (ms):                          250.00" in lines
    assert "P99 TPOT (ms):                           20.00" in lines
    assert "Steps in a CUDA graph (%):               100.00" in lines
    assert max(map(len, lines)) == WIDTH


def test_limits_have_a_section_and_goodput_stands_beside_throughput() -> None:
    """As `vllm bench serve --goodput` prints it; a percentile that a rejected request makes infinite is `inf`."""
    records = make_records(COMPLETED, COMPLETED, Life(rejected="too long"), steps=(Step(0.0, 2.25),))
    summary = summarize(records, num_gpu_blocks=11, dispatch=DISPATCH) | slo_figures(SLOS, records, 2.0)
    lines = result_table(summary | {"slo": limits_json(SLOS)}).splitlines()
    assert "Request goodput (req/s):                 1.00" in lines
    assert "ttft_p50, limit 500 (ms):                250.00" in lines
    assert "ttft_p99, limit 500 (ms):                inf" in lines
    assert "Requests within all limits (%):          66.67" in lines


def test_a_run_in_which_nothing_completed_shows_dashes() -> None:
    """No figure is made up: `-` stands for what could not be measured."""
    summary = summarize(make_records(Life(rejected="too long")), num_gpu_blocks=11, dispatch=DISPATCH)
    lines = result_table(summary).splitlines()
    assert "Rejected requests:                       1" in lines
    assert "P99 E2EL (ms):                           -" in lines
