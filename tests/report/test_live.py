"""The page of a run that goes on: this machine alone, read only, as new as the record."""

import http.client
import threading

import pytest
from fixtures.fake_records import fake_record
from report.pages import parsed, policy_of, small_run

from assay.record import RunDirectory, RunError
from assay.report.live import LiveError, LivePage, make_live_page, server_of


@pytest.fixture
def run(tmp_path):
    return small_run(tmp_path / "run", steps=2)


@pytest.fixture
def serve(run):
    live = LivePage(run, make_live_page)
    with server_of(live, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def ask(path="/", method="GET", host=None):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
            connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
            answer = connection.getresponse()
            found = answer.status, answer.read().decode(), dict(answer.getheaders())
            connection.close()
            return found

        ask.server, ask.live = server, live
        yield ask
        server.shutdown()
        thread.join()


def test_it_listens_on_this_machine_alone(serve):
    assert serve.server.server_address[0] == "127.0.0.1"


def test_the_page_may_ask_its_own_server_and_nobody_else(serve):
    status, page, headers = serve()
    assert status == 200
    assert policy_of(page)["connect-src"] == "'self'"
    assert parsed(page).data["live"] is True
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:8765", "[::1]:80"]
)
def test_another_name_in_the_host_header_gets_nothing(serve, host):
    status, text, _ = serve(host=host)
    assert status == 403
    assert "<" not in text


def test_localhost_is_this_machine_too(serve):
    assert serve(host=f"localhost:{serve.server.server_port}")[0] == 200


@pytest.mark.parametrize("path", ["/config.toml", "/../run.json", "/?x=1", "/%2e%2e/etc/passwd", "/index.html"])
def test_no_file_is_served(serve, path):
    assert serve(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(serve, method):
    assert serve(method=method)[0] == 501


def test_head_has_no_body(serve):
    status, text, headers = serve(method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_a_new_step_is_a_new_version_and_a_new_page(serve, run):
    first = serve("/version")[1]
    assert serve("/version")[1] == first
    RunDirectory.open(run).append_step(fake_record(3))
    serve.live._made_at = float("-inf")  # long ago
    assert serve("/version")[1] != first
    assert parsed(serve()[1]).data["charts"][0]["ends"] == [1, 3]


def test_a_page_is_not_made_again_while_the_last_is_young(run):
    made = []

    def make(path):
        made.append(path)
        return "page", str(len(made))

    page = LivePage(run, make)
    page.refresh()
    page._took = 1000.0
    RunDirectory.open(run).append_step(fake_record(3))
    page.refresh()
    assert page.version == "1"
    page._made_at = float("-inf")
    page.refresh()
    assert page.version == "2"
    page._made_at = float("-inf")
    page.refresh()
    assert page.version == "2", "the record is as it was"


def test_a_run_that_vanishes_is_an_answer_and_not_a_crash(serve, run):
    serve()
    for file in sorted(run.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    run.rmdir()
    serve.live._made_at = float("-inf")
    status, text, _ = serve()
    assert status == 503
    assert "does not exist" in text


def test_what_cannot_be_read_is_an_error_before_anything_is_served(tmp_path):
    with pytest.raises(RunError):
        LivePage(tmp_path, make_live_page).refresh()


def test_a_port_that_is_taken_is_one_sentence(serve, run):
    with pytest.raises(LiveError, match=r"port \d+ cannot be used"):
        server_of(LivePage(run, make_live_page), serve.server.server_port)
