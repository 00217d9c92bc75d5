"""The job's document and the order of its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testbed.documents import from_json, to_json
from testbed.spec.scale import Scale
from testbed.spec.topology import load_topology
from testbed.spec.transport import TransportSpec
from testbed.workload.job.endpoint_resolution import distances_of, options_of
from testbed.workload.job.endpoints import JobEndpoints, RankEndpoint
from testbed.workload.job.launch_spec import JobSpec, RankFault, plan_steps
from testbed.workload.plan import Computing, GroupCollective, JobPlan, Message


def test_a_job_survives_the_way_to_the_launcher() -> None:
    job = JobSpec(
        wiring=JobEndpoints(
            token="t",
            ranks=(RankEndpoint(0, "east1", 0, "10.0.0.1", 17),),
            seed=3,
            timeout_s=2.5,
            kind="striped",
            congestion_control="cubic",
            options=options_of(TransportSpec(kind="striped"), Scale(1000)),
            distances=(("same_rack",),),
        ),
        dtype="float32",
        plan=JobPlan(
            (
                (
                    Computing("forward", "compute", "forward", (), 0.5),
                    GroupCollective(
                        "head", "one", "head", (0,), 0, "all_to_all_v", 9, table=((1, 2), (3, 4))
                    ),
                    Message("exchange", "exchange", "exchange", (0,), 0, 5, 3, True),
                ),
            ),
            (("all", (0,)),),
            dscps={"head": 26},
            buildings=(0,),
        ),
        steps=plan_steps({"ring": "ring"}, 1, 0, in_turns=True),
        output="/tmp",
        survives_kills=True,
        rank_faults=(RankFault(0, "rank_slow", 1, 0.5, for_s=2.0, factor=3.0),),
    )
    line = to_json(job)
    assert "\n" not in line
    assert from_json(JobSpec, line) == job


def test_variants_take_turns_in_going_first() -> None:
    steps = plan_steps({"ring": "ring", "hierarchical": "mine.py:mine"}, trials=2, warmup=1, in_turns=True)
    assert [(step.variant, step.trial) for step in steps] == [
        ("hierarchical", -1),
        ("ring", -1),
        ("ring", 0),
        ("hierarchical", 0),
        ("hierarchical", 1),
        ("ring", 1),
    ]
    assert {(step.variant, step.algorithm) for step in steps} == {
        ("ring", "ring"),
        ("hierarchical", "mine.py:mine"),
    }


def test_variants_follow_each_other_where_events_happen_in_each() -> None:
    steps = plan_steps({"ring": "ring", "hierarchical": "mine.py:mine"}, trials=1, warmup=1, in_turns=False)
    assert [(step.variant, step.trial) for step in steps] == [
        ("ring", -1),
        ("ring", 0),
        ("hierarchical", -1),
        ("hierarchical", 0),
    ]


def test_segments_shrink_as_messages_do() -> None:
    spec = TransportSpec(kind="striped")
    stripes = options_of(spec, Scale(1000))["stripes"]
    assert {name: stripe["connections"] for name, stripe in stripes.items()} == {
        "same_rack": 1,
        "same_zone": 2,  # as same_building, unless it is said
        "same_building": 2,
        "same_region": 4,
        "other_region": 8,
    }
    a_little = options_of(spec, Scale(10))["stripes"]["same_rack"]
    assert (a_little["segment_bytes"], a_little["outstanding"]) == (52_429, 128)
    # to a packet, of which fewer are under way: 128 times 524 bytes
    assert {(stripe["segment_bytes"], stripe["outstanding"]) for stripe in stripes.values()} == {(8192, 8)}
    least = options_of(spec, Scale(1e6))["stripes"]["same_rack"]
    assert (least["segment_bytes"], least["outstanding"]) == (8192, 2)
    small = TransportSpec.model_validate(
        {"kind": "striped", "stripes": {"same_rack": {"segment": "4 KiB", "outstanding": 1}}}
    )
    own = options_of(small, Scale(1000))["stripes"]["same_rack"]
    assert (own["segment_bytes"], own["outstanding"]) == (4096, 1)
    zoned = TransportSpec.model_validate({"kind": "striped", "stripes": {"same_zone": {"connections": 3}}})
    assert options_of(zoned, Scale())["stripes"]["same_zone"]["connections"] == 3


def test_ranks_know_how_far_the_others_are(tmp_path: Path) -> None:
    file = tmp_path / "three.yaml"
    file.write_text(
        """
name: three
buildings:
  a: {hosts: 4, nic: {rate: 1 Gbit/s}, clos: {leaves: 2, spines: 1}, region: north}
  b: {hosts: 2, nic: {rate: 1 Gbit/s}, region: north}
  c: {hosts: 1, nic: {rate: 1 Gbit/s}, region: south}
wan:
  - {a: a, b: b, rate: 1 Gbit/s, delay: 1 ms}
  - {a: b, b: c, rate: 1 Gbit/s, delay: 1 ms}
"""
    )
    topology = load_topology(file).resolve()
    far = distances_of(topology, topology.hosts)
    assert far[0] == (
        "same_rack", "same_rack", "same_building", "same_building", "same_region", "same_region", "other_region",
    )  # fmt: skip
    assert far[4][5] == "same_building"  # without tiers there are no racks
    zoned = load_topology(
        {
            "name": "zoned",
            "buildings": {
                "a": {"hosts": 8, "nic": {"rate": "1 Gbit/s"}, "clos": {"zones": 2, "leaves": 2, "spines": 1}}
            },
        }
    ).resolve()
    near, zone, building = (["same_rack"] * 2, ["same_zone"] * 2, ["same_building"] * 4)
    assert list(distances_of(zoned, zoned.hosts)[0]) == [*near, *zone, *building]
    assert list(distances_of(zoned, zoned.hosts)[6]) == [*building, *zone, *near]
    assert all(far[a][b] == far[b][a] for a in range(7) for b in range(7))


def test_what_every_rank_imports_is_neither_files_models_nor_netlink() -> None:
    code = "import sys, testbed.measure.ranks.launcher; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "numpy" in loaded
    # a guest pays for each page that an import touches: these took half of the launcher's start
    assert not {"pydantic", "pyroute2", "testbed.spec.base_model", "testbed.net.fabric"} & set(loaded)
