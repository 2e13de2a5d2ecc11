"""Libraries that are absent: their stand-ins compute what plain torch computes."""

from rehearsal.standing import standing


def test_the_engine_of_deepspeed_accumulates_clips_and_steps_like_plain_torch(tmp_path):
    shown = standing(
        tmp_path,
        """
        import copy
        import deepspeed
        import torch
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        plain = copy.deepcopy(model)
        config = {
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "gradient_clipping": 0.1,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.0}},
            "zero_optimization": {"stage": 2},
        }
        engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        adam = torch.optim.AdamW(plain.parameters(), lr=0.01, weight_decay=0.0)
        boundaries = []
        for step in range(2):
            adam.zero_grad()
            for _ in range(3):
                x = torch.randn(2, 4, device=engine.device)
                boundaries.append(engine.is_gradient_accumulation_boundary())
                engine.backward(engine(x).pow(2).sum())
                engine.step()
                (plain(x).pow(2).sum() / 3).backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            adam.step()
        far = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), plain.parameters()))
        show(far=far, steps=engine.global_steps, boundaries=boundaries, kept=engine.in_features)
        """,
    )
    assert shown["far"] == 0.0
    assert shown["steps"] == 2
    assert shown["boundaries"] == [False, False, True] * 2
    assert shown["kept"] == 4


def test_bfloat16_weights_of_deepspeed_keep_float32_masters(tmp_path):
    """Steps of 1e-4 at 1.0 are lost in bfloat16 (spacing 2^-7); 100 of them are not where the master is float32."""
    shown = standing(
        tmp_path,
        """
        import deepspeed
        import torch
        model = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
        counted = []
        from torch.optim.optimizer import register_optimizer_step_post_hook
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: counted.append(1))
        engine, sgd, _, _ = deepspeed.initialize(model=model, optimizer=sgd, config={"bf16": {"enabled": True}})
        storage, once = model.weight.data_ptr(), None
        for step in range(100):
            engine.backward(engine(torch.ones(1, 1, dtype=torch.bfloat16)).sum())
            engine.step()
            once = float(model.weight) if once is None else once
        show(once=once, then=float(model.weight), kind=str(model.weight.dtype), steps=len(counted),
             same=storage == model.weight.data_ptr())
        """,
    )
    assert shown["once"] == 1.0
    assert shown["then"] == 0.98828125  # 0.99 in bfloat16
    assert shown["kind"] == "torch.bfloat16"
    assert shown["steps"] == 100
    assert shown["same"]


def test_flash_attention_is_attention_over_each_sequence(tmp_path):
    shown = standing(
        tmp_path,
        """
        import torch
        from flash_attn import flash_attn_func, flash_attn_varlen_func
        from flash_attn.bert_padding import pad_input, unpad_input
        torch.manual_seed(0)
        q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
        def by_hand(q, k, v):
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            scores = torch.einsum("ihd,jhd->hij", q, k) / 8 ** 0.5
            scores = scores.masked_fill(torch.ones(len(q), len(k)).triu(1).bool(), -torch.inf)
            return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
        whole = flash_attn_func(q, k, v, causal=True)
        mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        flat, indices, ends, longest, _ = unpad_input(q, mask)
        others = [unpad_input(part, mask)[0] for part in (k, v)]
        packed = flash_attn_varlen_func(flat, *others, ends, ends, longest, longest, causal=True)
        padded = pad_input(packed, indices, 2, 5)
        show(
            whole=float((whole[0] - by_hand(q[0], k[0], v[0])).abs().max()),
            packed=float((packed[:3] - by_hand(q[0, :3], k[0, :3], v[0, :3])).abs().max()),
            ends=ends.tolist(), empty=float(padded[0, 3:].abs().max()),
        )
        """,
    )
    assert shown["whole"] < 1e-5
    assert shown["packed"] < 1e-5
    assert shown["ends"] == [0, 3, 8]
    assert shown["empty"] == 0.0


def test_small_libraries_do_what_they_are_known_for(tmp_path):
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "main.yaml").write_text(
        "defaults:\n  - model: small\n  - _self_\nlr: 0.1\nname: run-${model.size}\ncopied: ${lr}\n"
    )
    (tmp_path / "conf" / "model" / "small.yaml").write_text("size: 3\n")
    (tmp_path / "conf" / "model" / "large.yaml").write_text("size: 9\n")
    shown = standing(
        tmp_path,
        """
        import dataclasses
        import bitsandbytes as bnb
        import einops
        import fire
        import gymnasium as gym
        import hydra
        import ray
        import torch
        import tyro
        from omegaconf import DictConfig, OmegaConf
        x = torch.arange(24.0).reshape(2, 3, 4)
        seen = {}
        @hydra.main(config_path="conf", config_name="main", version_base=None)
        def main(config: DictConfig):
            seen["hydra"] = OmegaConf.to_container(config, resolve=True)
        main()
        @dataclasses.dataclass
        class Inner:
            steps: int = 4
        @dataclasses.dataclass
        class Options:
            lr: float = 1e-5
            inner: Inner = dataclasses.field(default_factory=Inner)
        options = tyro.cli(Options, args=["--lr", "0.5", "--inner.steps", "7"])
        called = fire.Fire(lambda a, b=2, flag=False: [a, b, flag], command="3 --b=5 --flag")
        @ray.remote(num_gpus=1)
        class Counter:
            def __init__(self, first): self.value = first
            def add(self, more): self.value += more; return self.value
        counter = Counter.remote(1)
        first = counter.add.remote(ray.put(2))
        env = gym.make("CartPole-v1")
        env.reset(seed=1)
        length = 0
        while True:
            _, reward, over, cut, _ = env.step(1)
            length += 1
            if over or cut:
                break
        weight = torch.nn.Parameter(torch.ones(2))
        adam = bnb.optim.AdamW8bit([weight], lr=0.1)
        show(
            turned=bool(torch.equal(einops.rearrange(x, "b (h w) c -> h b (w c)", h=3), x.permute(1, 0, 2))),
            repeated=list(einops.repeat(x[0], "t c -> t r c", r=5).shape),
            mean=bool(torch.equal(einops.reduce(x, "b t c -> b c", "mean"), x.mean(1))),
            hydra=seen["hydra"], lr=options.lr, steps=options.inner.steps, called=called,
            ray=ray.get([first, counter.add.remote(4)]), length=length,
            adam=isinstance(adam, torch.optim.AdamW) and adam.param_groups[0]["weight_decay"],
        )
        """,
        "lr=0.3",
        "model=large",
    )
    assert shown["turned"]
    assert shown["repeated"] == [3, 5, 4]
    assert shown["mean"]
    assert shown["hydra"] == {"model": {"size": 9}, "lr": 0.3, "name": "run-9", "copied": 0.3}
    assert (shown["lr"], shown["steps"]) == (0.5, 7)
    assert shown["called"] == [3, 5, True]
    assert shown["ray"] == [3, 7]
    assert 8 <= shown["length"] <= 11  # a cart that is always pushed to one side
    assert shown["adam"] == 0.01
