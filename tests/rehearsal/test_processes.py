"""Several processes in one: groups of one rank, wrappers, queues between a generator and a trainer."""

from rehearsal.standing import standing


def test_a_group_of_one_rank_computes_what_plain_torch_does(tmp_path):
    shown = standing(
        tmp_path,
        """
        import os
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DistributedSampler
        rank = int(os.environ["LOCAL_RANK"])
        dist.init_process_group(backend="nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        torch.cuda.set_device(rank)
        plain = torch.nn.Linear(3, 2)
        model = DDP(plain.to(rank), device_ids=[rank], output_device=rank)
        x = torch.tensor([[1.0, 2.0, 3.0]], device=f"cuda:{rank}")
        model(x).sum().backward()
        reduced = x.clone()
        dist.all_reduce(reduced)
        dist.broadcast(reduced, src=3)
        gathered = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, x)
        objects = [None]
        dist.all_gather_object(objects, {"a": 1})
        dist.barrier()
        sharded = FSDP(torch.nn.Linear(3, 2), device_id=0, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
        show(
            gradient=plain.weight.grad.tolist(), reduced=reduced.tolist(), gathered=gathered[0].tolist(),
            objects=objects, rows=list(DistributedSampler([7, 8, 9], shuffle=False)), low=str(sharded(x).dtype),
            kept=str(sharded.weight.dtype), names=list(sharded.state_dict()),
        )
        """,
    )
    assert shown["gradient"] == [[1.0, 2.0, 3.0]] * 2  # d sum(Wx + b) / dW
    assert shown["reduced"] == shown["gathered"] == [[1.0, 2.0, 3.0]]
    assert shown["objects"] == [{"a": 1}]
    assert shown["rows"] == [0, 1, 2]
    assert (shown["low"], shown["kept"]) == ("torch.bfloat16", "torch.float32")
    assert shown["names"] == ["weight", "bias"]


def test_a_generator_and_a_trainer_meet_and_the_main_thread_trains(tmp_path):
    shown = standing(
        tmp_path,
        """
        import multiprocessing as mp
        import threading
        import time
        import torch
        def generator(batches, weights):
            for number in range(3):
                batches.put(torch.full((2,), float(number), device="cuda"))
                time.sleep(5)
            weights.put(["seen", weights.get(timeout=20)])
        def trainer(batches, weights, done):
            weight = torch.nn.Parameter(torch.ones(2))
            for _ in range(3):
                (weight * batches.get()).sum().backward()
            weights.put(weight.grad.tolist())
            done["main"] = threading.current_thread() is threading.main_thread()
        if __name__ == "__main__":
            context = mp.get_context("spawn")
            batches, weights, done = context.Queue(maxsize=2), context.Queue(), mp.Manager().dict()
            parts = [context.Process(target=generator, args=(batches, weights), daemon=True)]
            parts.append(mp.Process(target=trainer, args=(batches, weights, done)))
            for part in parts:
                part.start()
            for part in parts:
                part.join()
            with mp.Pool(2) as pool:
                powers = pool.starmap(pow, [(2, 3), (3, 2)])
            show(main=done["main"], delivered=weights.get(), codes=[part.exitcode for part in parts], powers=powers)
        """,
    )
    assert shown["main"]
    assert shown["delivered"] == ["seen", [3.0, 3.0]]  # 0 + 1 + 2
    assert shown["codes"] == [0, 0]
    assert shown["powers"] == [8, 9]


def test_an_absent_module_is_inert_unless_the_script_has_an_answer(tmp_path):
    shown = standing(
        tmp_path,
        """
        import absent_board.client as client
        from absent_board import Writer, log, BoardError
        try:
            import absent_too
            found = True
        except ImportError:
            found = False
        class Mine(Writer):
            pass
        with Mine("run") as writer:
            writer.add_scalar("loss", 1.0)
        try:
            log({"x": 1})
        except BoardError:
            pass
        from assay.rehearsal.standins.missing import culprit
        import sys
        names = []
        for fail in (lambda: log(1) @ 1, lambda: [1, 2] + 3):
            try:
                fail()
            except TypeError as error:
                names.append(culprit(error))
        show(found=found, names=names)
        """,
    )
    assert not shown["found"]
    assert shown["names"] == ["absent_board.log", None]
    assert ["service", "the module absent_board", "an inert module"] in shown["replaced"]
