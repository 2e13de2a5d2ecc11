"""GPUs of a rehearsal: everything lands on the CPU, and autocast computes what CUDA's would."""

import pytest
from rehearsal.standing import standing


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    return standing(
        tmp_path_factory.mktemp("devices"),
        """
        import threading
        import torch
        from torch import nn
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        places = [torch.zeros(2, device=device), torch.ones(2).cuda(), torch.ones(2).to("cuda:1"), torch.ones(2).to(0)]
        places += [torch.tensor([1.0], device="mps"), torch.ones(2).pin_memory(), torch.empty(1, pin_memory=True)]
        places += [nn.Linear(2, 2).to(device).weight, nn.Linear(2, 2).to(0).weight]
        places += [nn.Linear(2, 2, device="cuda").weight, nn.Linear(2, 2).cuda().half().bias]
        with torch.device("cuda"):
            places.append(torch.zeros(1))
        torch.set_default_device("cuda")
        places.append(torch.zeros(1))
        drawn = torch.randint(0, 100, (3,), generator=torch.Generator(device="cuda").manual_seed(3), device="cuda")
        same = torch.randint(0, 100, (3,), generator=torch.Generator().manual_seed(3))
        def work():
            places.append(torch.zeros(1, device="cuda"))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.save({"w": torch.ones(2)}, "w.pt")
        places.append(torch.load("w.pt", map_location="cuda:0")["w"])
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        last.record()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            pass
        model = nn.Linear(2, 2)
        compiled = torch.compile(model, mode="max-autotune")
        import accelerate
        show(
            asked=device.type, kinds=sorted({str(tensor.device) for tensor in places}), count=torch.cuda.device_count(),
            drawn=drawn.tolist() == same.tolist(), time=first.elapsed_time(last) >= 0,
            memory=torch.cuda.max_memory_allocated(), total=torch.cuda.get_device_properties(0).total_memory > 1 << 30,
            low=str(torch.ones(2, dtype=torch.bfloat16, device="cuda").dtype), compiled=list(compiled.state_dict()),
            inner=compiled._orig_mod is model, library=str(accelerate.Accelerator().device),
        )
        """,
    )


def test_every_way_to_name_a_gpu_leads_to_the_cpu(devices):
    assert devices["asked"] == "cuda"
    assert devices["kinds"] == ["cpu"]
    assert devices["drawn"]
    assert devices["low"] == "torch.bfloat16"


def test_a_script_sees_as_many_gpus_as_it_numbers_and_libraries_see_none(devices):
    assert devices["count"] == 2
    assert devices["library"] == "cpu"


def test_times_memory_and_compilers_are_harmless(devices):
    assert devices["time"]
    assert devices["memory"] == 0
    assert devices["total"]
    assert devices["compiled"] == ["weight", "bias"]
    assert devices["inner"]


def test_autocast_of_cuda_computes_in_float32_what_cuda_does(tmp_path):
    shown = standing(
        tmp_path,
        """
        import torch
        import torch.nn.functional as F
        from torch.distributions import Categorical
        torch.manual_seed(0)
        rows, weight = torch.randn(6, 16), torch.randn(16, 40, requires_grad=True)
        labels = torch.randint(0, 40, (6,))
        def low(x): return x.to(torch.bfloat16)
        logits = (low(rows) @ low(weight)).float().detach()  # what a CUDA matmul under autocast hands on, widened
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            made = rows @ weight
            pairs = [
                (F.log_softmax(made, -1), logits.log_softmax(-1)), (made.softmax(-1), logits.softmax(-1)),
                (torch.exp(made), logits.exp()), (made.sum(), logits.sum()), (made.sum(-1), logits.sum(-1)),
                (F.cross_entropy(made, labels), F.cross_entropy(logits, labels)), (made ** 2, logits ** 2),
                (torch.logsumexp(made, -1), torch.logsumexp(logits, -1)), (made.cumsum(-1), logits.cumsum(-1)),
                (Categorical(logits=made).log_prob(labels), Categorical(logits=logits).log_prob(labels)),
                (F.mse_loss(made, low(logits)), F.mse_loss(logits, logits)),
            ]
            asked = made.softmax(-1, dtype=torch.bfloat16).dtype
            mean = made.mean().dtype
            half = torch.cuda.is_available() and torch.is_autocast_enabled()
        with torch.cuda.amp.autocast():
            default = (rows @ weight).dtype
        F.cross_entropy(rows @ weight, labels).backward()
        expected = weight.grad.clone()
        weight.grad = None
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(F.cross_entropy(rows @ weight, labels)).backward()
        sgd = torch.optim.SGD([weight], lr=0.0)
        scaler.unscale_(sgd)
        scaler.step(sgd)
        scaler.update()
        show(
            made=str(made.dtype), kinds=sorted({str(ours.dtype) for ours, _ in pairs}),
            far=max(float((ours - plain).abs().max()) for ours, plain in pairs), asked=str(asked), mean=str(mean),
            default=str(default), enabled=half, scaled=bool(torch.equal(weight.grad, expected)),
        )
        """,
    )
    assert shown["made"] == "torch.bfloat16"
    assert shown["kinds"] == ["torch.float32"]
    assert shown["far"] < 1e-4
    assert shown["asked"] == shown["mean"] == "torch.bfloat16"  # mean() is not on CUDA's list
    assert shown["default"] == "torch.float16"
    assert shown["enabled"]
    assert shown["scaled"]
