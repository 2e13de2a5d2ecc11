"""Two halves of a script that meet over HTTP, services on the network, files that are missing."""

import json

from rehearsal.standing import standing

_REFERENCE = """
import json
import queue
import threading
import bottle
from bottle import request
work, done = queue.Queue(), queue.Queue()
app = bottle.Bottle()
@app.route("/upload", method="POST")
def upload():
    work.put(json.loads(request.body.read()))
    return b"kept"
@app.route("/get", method="GET")
def get():
    return json.dumps(done.get(timeout=20)).encode()
if __name__ == "__main__":
    threading.Thread(target=lambda: bottle.run(app, host="0.0.0.0", port=59875, server="tornado"), daemon=True).start()
    while True:
        batch = work.get()
        done.put([2 * number for number in batch])
"""
_ROLLOUTS = """
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
import uvicorn
app = FastAPI()
class Asked(BaseModel):
    prompts: list[str]
    n: int = 1
@app.get("/health")
def health():
    return {"ok": True}
@app.post("/draw")
async def draw(asked: Asked):
    if not asked.prompts:
        raise HTTPException(status_code=400, detail="no prompts")
    return {"texts": [prompt.upper() for prompt in asked.prompts for _ in range(asked.n)]}
@app.post("/weights")
async def weights(request: Request, step: int = 0):
    return {"bytes": len(await request.body()), "step": step}
if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=8300)
"""


def test_the_other_half_is_found_by_its_routes_and_answers(tmp_path):
    (tmp_path / "reference_server.py").write_text(_REFERENCE)
    (tmp_path / "rollout_server.py").write_text(_ROLLOUTS)
    shown = standing(
        tmp_path,
        """
        import requests
        kept = requests.post("http://localhost:59875/upload", data=json.dumps([1, 2, 3]).encode())
        got = requests.get("http://localhost:59875/get").json()
        url = "http://192.168.1.5:8300"
        healthy = requests.get(f"{url}/health", timeout=3).json()
        drawn = requests.post(f"{url}/draw", json={"prompts": ["a", "b"], "n": 2}).json()
        refused = requests.post(f"{url}/draw", json={"prompts": []})
        sent = requests.post(f"{url}/weights", params={"step": 7}, data=b"12345").json()
        try:
            requests.get("http://localhost:4/nothing")
        except requests.exceptions.ConnectionError:
            lost = True
        show(kept=kept.text, got=got, healthy=healthy, drawn=drawn, code=refused.status_code, sent=sent, lost=lost)
        """,
    )
    assert shown["kept"] == "kept"
    assert shown["got"] == [2, 4, 6]
    assert shown["healthy"] == {"ok": True}
    assert shown["drawn"] == {"texts": ["A", "A", "B", "B"]}
    assert shown["code"] == 400
    assert shown["sent"] == {"bytes": 5, "step": 7}
    assert shown["lost"]
    assert ["processes", "the server reference_server.py", "a thread of this process"] in shown["replaced"]


def test_judges_answer_in_the_usual_shape_and_are_named_as_replaced(tmp_path):
    shown = standing(
        tmp_path,
        """
        import os
        import requests
        from openai import OpenAI
        client = OpenAI(api_key=os.environ["JUDGE_API_KEY"])
        said = [
            client.chat.completions.create(model="judge", messages=[{"role": "user", "content": text}]).choices[0]
            for text in ("a", "a", "b")
        ]
        posted = requests.post("https://example.com/score", json={"text": "a"}).json()
        import wandb
        wandb.init(project="x", config={"lr": 0.5})
        wandb.log({"loss": 1.0})
        show(
            scores=[choice.message.content for choice in said], reward=posted["reward"], line=input("go on?"),
            lr=wandb.config.lr,
        )
        """,
    )
    assert shown["scores"][0] == shown["scores"][1]
    assert all(text.startswith("Score: ") for text in shown["scores"])
    assert 0.0 < shown["reward"] <= 1.0
    assert shown["line"] == ""
    assert shown["lr"] == 0.5
    assert {"rewards", "service"} <= {kind for kind, _, _ in shown["replaced"]}


def test_missing_files_are_made_and_those_that_are_there_are_read(tmp_path):
    (tmp_path / "here.json").write_text(json.dumps({"kept": 1}))
    shown = standing(
        tmp_path,
        """
        import os
        import pickle
        from pathlib import Path
        import torch
        rows = [json.loads(line) for line in open("data/train.jsonl")]
        first = rows[0]["question"]
        if not os.path.exists("data/test.json"):
            raise FileNotFoundError("data/test.json")
        is_resumed = os.path.exists("checkpoints/last.pt")
        held = json.loads(Path("data/test.json").read_text())
        stored = pickle.load(open("data/prompts.pkl", "rb"))
        kept = json.load(open("here.json"))
        model = torch.nn.Linear(2, 2)
        before = model.weight.clone()
        state = torch.load("sft/policy.pt", map_location="cuda", weights_only=True)
        model.load_state_dict(state["model"])
        model.load_state_dict({name.removeprefix("module."): value for name, value in state["model"].items()})
        with open("logs/run/out.txt", "w") as file:
            file.write("x")
        try:
            open("nothing.xyz")
        except FileNotFoundError:
            lost = True
        show(
            rows=len(rows), first=first, held=len(held), stored=len(stored), kept=kept, resumed=is_resumed,
            same=bool(torch.equal(before, model.weight)), layers=state["config"]["n_layer"], lost=lost,
        )
        """,
    )
    assert shown["rows"] > 100
    assert isinstance(shown["first"], str)
    assert shown["held"] > 1
    assert shown["stored"] > 100
    assert shown["kept"] == {"kept": 1}
    assert not shown["resumed"]
    assert shown["same"]
    assert shown["layers"] == 2
    assert shown["lost"]
    assert {"data", "weights"} <= {kind for kind, _, _ in shown["replaced"]}
