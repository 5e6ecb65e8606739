"""What the server answers, to whom, and what it says of what cannot be simulated."""

import pytest

pytest.importorskip("flask")

from flask.testing import FlaskClient

from sim.errors import ConfigError
from sim.web.server import HOST, application, serving
from sim.web.what_if import WhatIf

START = WhatIf({"trace": "chat", "limit": "20"}, {"model": "Llama-3.1-8B", "gpu": "h100-sxm"})
HERE = f"http://{HOST}:8321"


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    return application(START).test_client()


def answer(client: FlaskClient, **changed: str) -> str:
    return client.get("/answer", base_url=HERE, query_string={**START.load, **START.first, **changed}).text


def test_an_address_without_a_query_is_where_it_starts(client: FlaskClient) -> None:
    """So that the address in the browser always says everything."""
    assert client.get("/", base_url=HERE).location == f"/?{START.to_query()}"


def test_the_page_works_without_scripts(client: FlaskClient) -> None:
    """Controls have what the address says, and the answer is there."""
    page = client.get(f"/?{START.to_query()}&max-num-seqs=7&b-gpu=l4", base_url=HERE).text
    assert 'name="max-num-seqs" value="7"' in page
    assert 'name="limit" value="20"' in page
    assert "P99 TTFT" in page
    assert "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 7" in page


def test_two_configurations_stand_side_by_side(client: FlaskClient) -> None:
    """Each with its lines, and how far the second is from the first: of equal ones not at all."""
    two = answer(client, compare="on", **{f"b-{name}": value for name, value in START.first.items()})
    assert "Side by side" in two
    assert two.count("vllm serve meta-llama/Llama-3.1-8B") == 2
    changes = two.split("change (%)")[1].split("</tbody>")[0]
    assert changes.count('<td class="number">0</td>') >= 10


def test_what_cannot_be_simulated_is_one_sentence(client: FlaskClient) -> None:
    """With its configuration, where there are two; whatever it repeats is text and no HTML."""
    assert "a model is missing; choose one." in answer(client, model="")
    assert "configuration B: a GPU is missing" in answer(client, compare="on")
    said = answer(client, trace="<script>alert(1)</script>")
    assert "there is no such file" in said
    assert "<script>alert" not in said
    assert "which no control has" in answer(client, modell="x")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example"])
def test_a_name_that_is_made_to_lead_here_is_refused(client: FlaskClient, host: str) -> None:
    """A page elsewhere must not have files of this machine read."""
    assert client.get("/answer?trace=/etc/passwd", base_url=f"http://{host}").status_code == 403


def test_a_port_that_is_taken_is_named() -> None:
    server = serving(START, 0)
    try:
        with pytest.raises(ConfigError, match=f"port {server.port} of this machine cannot be had; give --port"):
            serving(START, server.port)
    finally:
        server.server_close()


def test_without_flask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "werkzeug.serving", None)
    with pytest.raises(ConfigError, match=r"the page needs Flask; install `servecast\[web\]`"):
        serving(START, 0)
