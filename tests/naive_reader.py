"""A second reader of the ledger, written from docs/LEDGER_FORMAT.md alone.

An oracle: it shares no line with ``ledger.projection`` and knows nothing but JSON, hashes
and that page. Rule numbers are those of its section "The fold". It is made to be obviously
right, not fast. It leaves out who occupies which slot, and the archive that rests on it, so
it is for journals of fewer than 1,250 ended jobs.
"""

from __future__ import annotations

import hashlib
import json
import re

from tests.naive_fair import OPEN, QUEUED, Body, NaiveFair, zeros

REQUEUES_MAX = 5
ASSIGNED, REVOKING, STARTED, STOPPING, LOST, ENDED = range(6)
OUTCOMES = {
    "timeout": "TIMEOUT",
    "deadline": "EXPIRED",
    "oom": "OUT_OF_MEMORY",
    "exclusive": "NODE_FAIL",
}


class NaiveReader(NaiveFair):
    """Feed it the bytes of page 0, 1, 2, ...; AssertionError where it must stop."""

    def __init__(self, ledger: str) -> None:
        super().__init__()
        self.ledger = ledger
        self.seq, self.sha256, self.now = -1, "", 0
        self.leader: tuple[int, str] = (0, "")
        self.void_pages = 0
        self.writers = zeros()
        self.jobs: dict[str, Body] = {}
        self.kept_cancels: dict[str, Body] = {}
        self.artifacts: set[str] = set()
        self.workers: dict[str, Body] = {}
        self.nodes: dict[str, Body] = {}
        self.factors: dict[str, int] = {}
        self.thresholds: dict[str, int] = {}

    def read(self, body: bytes) -> None:
        page = json.loads(body)
        assert page["v"] == 1
        assert (page["ledger"], page["seq"]) == (self.ledger, self.seq + 1)
        assert page["prev_sha256"] == self.sha256
        self.seq, self.sha256 = page["seq"], hashlib.sha256(body).hexdigest()
        leader = (page["epoch"], page["leader"])
        elected = any(decision["kind"] == "elect" for decision in page["decisions"])
        if page["epoch"] != self.leader[0] + 1 if elected else leader != self.leader:
            self.void_pages += 1
            return
        self.leader, self.now = leader, page["at"]
        for posted in page["facts"]:
            self.fact(posted["fact"])
        for seen in page["seen"]:
            self.seen(seen)
        for decision in page["decisions"]:
            getattr(self, "decided_" + decision["kind"])(decision)
        assert page["fair"] == self.digest()

    # --- moves of jobs

    def enter(self, job: Body) -> None:
        is_early = job["begin_at"] > self.now
        is_without = not set(job["artifacts"]) <= self.artifacts
        if (job["after"] or is_without or is_early) and not job["attempts"]:
            job["state"], job["aside"] = "PENDING", True
        else:
            self.queue(job)

    def queue(self, job: Body, *, resumed: bool = False) -> None:
        job["state"], job["aside"] = "PENDING", False
        self.join(job, resumed=resumed)

    def place(self, job: Body, pool: str) -> None:
        job["pool"] = pool
        job["flow"] = f"{job['share']}/{pool}"

    def waits(self, job: Body) -> bool:
        """Counted in its pool; where it is no suspended array, in its flow's queue too."""
        return job["state"] == "PENDING" and not job["aside"]

    def leave_for(self, job: Body, state: str) -> None:
        if self.waits(job):
            self.leave(job)
        job["state"], job["aside"] = state, False

    def end(self, job: Body, state: str) -> None:
        if job["left"] is not None:
            if job["state"] in OPEN and not job["closed"]:
                job["closed"] = state
                fresh = self.fresh(job) if state == "REJECTED" or job["aside"] else []
                self.leave_for(job, "RUNNING")
                for member in fresh:
                    self.end(member, state)
                self.regulate(job)
            return
        if job["state"] in OPEN:
            self.leave_for(job, state)
            job["due"] = None
        self.follow(job)

    def reopen(self, job: Body, state: str) -> None:
        self.leave_for(job, state)
        self.follow(job)

    # --- arrays and their members

    def named(self, name: str) -> Body | None:
        return self.jobs.get(name) or self.split(name)

    def whole_of(self, name: str) -> Body | None:
        is_member = re.fullmatch("[a-z2-7]{8}_(0|[1-9][0-9]{0,8})", name)
        whole = self.jobs.get(name[:8]) if is_member else None
        return whole if whole is not None and whole["left"] is not None else None

    def split(self, name: str) -> Body | None:
        whole = self.whole_of(name)
        if whole is None or whole["state"] not in QUEUED or int(name[9:]) not in whole["left"]:
            return None
        job = {**whole, "id": name, "attempts": [], "left": None, "suspended": False}
        self.jobs[name] = job
        if whole["suspended"]:
            self.wait(job, 1, resumed=False)
        whole["left"].remove(int(name[9:]))
        self.follow(job)
        return job

    def fresh(self, whole: Body) -> list[Body]:
        members = [] if whole["left"] is None else sorted(whole["members"].items())
        return [job for _, job in members if job["state"] in QUEUED and not job["attempts"]]

    def follow(self, job: Body) -> None:
        whole = self.whole_of(job["id"])
        if whole is not None:
            whole["members"][int(job["id"][9:])] = job
            self.regulate(whole)

    def regulate(self, whole: Body) -> None:
        states = {job["state"] for job in whole["members"].values()}
        if whole["state"] in QUEUED and not whole["left"]:
            self.leave_for(whole, "RUNNING")
        if self.waits(whole):
            self.keep_limit(whole)
        over = not states & set(OPEN) and (whole["closed"] or not whole["left"])
        if over and whole["state"] in OPEN:
            others = states - {"COMPLETED"}
            worst = "CANCELLED" if others == {"CANCELLED"} else "FAILED"
            whole["state"] = whole["closed"] or (worst if others else "COMPLETED")
        elif not over and whole["state"] not in OPEN:
            whole["state"] = "RUNNING"

    # --- moves of attempts

    def find(self, event: Body) -> tuple[Body, Body] | tuple[None, None]:
        job = self.jobs.get(event["job"])
        number = event["attempt"]
        if job is None or not 0 < number <= len(job["attempts"]):
            return None, None
        return job, job["attempts"][number - 1]

    def occupancy(self, attempt: Body, until: int) -> int:
        if attempt["started_at"] is None:
            return 0
        return attempt["slots"] * max(0, until - attempt["started_at"])

    def cost(self, attempt: Body, until: int) -> int:
        report = attempt["report"]
        if not attempt["factor"]:
            numerator, denominator = attempt["rate"]
            return -(-self.occupancy(attempt, until) * numerator // denominator)
        tokens = (report.get("input_tokens", 0), report.get("output_tokens", 0))
        return tokens[0] + attempt["factor"] * tokens[1] if any(tokens) else int(attempt["cost"])

    def may_run_again(self, job: Body, attempt: Body) -> bool:
        return job["idempotent"] or attempt["retried"] or not attempt["ran"]

    def mark_started(self, job: Body, attempt: Body) -> None:
        if attempt["phase"] in (ASSIGNED, REVOKING):
            attempt["phase"] = STOPPING if attempt["stop"] else STARTED
            job["due"] = None
            if attempt is job["attempts"][-1] and job["state"] in OPEN:
                job["state"] = "STOPPING" if attempt["stop"] else "RUNNING"

    def give_up(self, job: Body, attempt: Body) -> None:
        """What becomes of the job whose attempt was lost (rules 11 and 22)."""
        if attempt is job["attempts"][-1]:
            if job["cancel"]:
                self.end(job, "CANCELLED")
            elif not self.may_run_again(job, attempt):
                self.end(job, "NODE_FAIL")

    # --- facts

    def fact(self, fact: Body) -> None:
        self.writers[fact["writer"]] = max(self.writers[fact["writer"]], fact["n"] + 1)
        kind = fact["kind"]
        if kind in ("submit", "submit_array"):
            self.submit(fact["job"])
        elif kind == "cancel":
            self.cancel(fact)
        elif kind in ("hold", "release"):
            job = self.named(fact["job"])
            if job and kind == "hold" and job["state"] == "PENDING":
                self.leave_for(job, "HELD")
            elif job and kind == "release" and job["state"] == "HELD":
                job["requeues"] = 0
                self.enter(job)
        elif kind == "move":
            self.move(fact)
        elif kind == "retry":
            self.retry(fact["job"])
        elif kind == "policy":
            pools = fact["policy"]["pools"]
            self.factors = {
                name: max(1, pool["api"].get("output_factor", 2))
                for name, pool in pools.items()
                if pool.get("api")
            }
            self.divided = {
                name
                for name, pool in pools.items()
                if any(slots.get("nominal") for slots in pool.get("class_slots", {}).values())
            }
            self.thresholds = {
                name: pool.get("memory_threshold_bytes", 0) for name, pool in pools.items()
            }
            self.disciplines = {name: pool.get("discipline", "wfq") for name, pool in pools.items()}
        elif kind == "ready":
            self.ready(fact)
        elif kind not in ("drain", "undrain") and fact["worker"] in self.workers:
            self.worker_fact(fact)

    def submit(self, spec: Body) -> None:
        if spec["id"] in self.jobs or re.fullmatch("[a-z2-7]{8}_(0|[1-9][0-9]{0,8})", spec["id"]):
            return
        array = spec.get("array")
        job: Body = {
            "id": spec["id"],
            "left": array and [i for a, b, c in array["ranges"] for i in range(a, b + 1, c)],
            "at_once": array.get("at_once", 0) if array else 0,
            "members": {},
            "suspended": False,
            "closed": "",
            "share": f"{spec['organization']}/{spec['workload_class']}",
            "due": None,
            "memory": spec.get("gpu_memory_bytes", 0),
            "idempotent": spec.get("idempotent", False),
            "state": "HELD",
            "after": spec.get("after", []),
            "begin_at": spec.get("begin_at", 0),
            "artifacts": spec.get("after_artifacts", []),
            "aside": False,
            "cancel": False,
            "requeues": 0,
            "attempts": [],
        }
        self.place(job, spec["pool"])
        self.jobs[spec["id"]] = job
        if not spec.get("held", False):
            self.enter(job)
        for name in [name for name in self.kept_cancels if name.split("_")[0] == spec["id"]]:
            self.cancel(self.kept_cancels.pop(name))

    def cancel(self, fact: Body) -> None:
        job = self.named(fact["job"])
        if job is None:
            if self.whole_of(fact["job"]) is None:
                self.kept_cancels[fact["job"]] = fact
            return
        lost = bool(job["attempts"]) and job["attempts"][-1]["phase"] == LOST
        provisional = job["state"] == "NODE_FAIL" and lost
        if job["cancel"] or not (job["state"] in OPEN or provisional):
            return
        job["cancel"] = True
        if provisional:
            self.reopen(job, "RUNNING")
        if provisional or job["state"] in QUEUED:
            self.end(job, "CANCELLED")
        for index, member in sorted(job["members"].items() if job["left"] is not None else ()):
            if member["state"] in OPEN:
                self.cancel({**fact, "job": f"{job['id']}_{index}"})

    def move(self, fact: Body) -> None:
        job, pool, worker = self.named(fact["job"]), fact["pool"], fact.get("worker", "")
        is_name = re.fullmatch(r"[a-z0-9-]{1,63}", pool)
        is_worker = re.fullmatch(r"([a-z0-9-]{1,63}-(gpu|cpu)(0|[1-9][0-9]{0,4}))?", worker)
        if job is None or not is_name or not is_worker:
            return
        if self.waits(job) and pool != job["pool"]:
            self.leave(job)
            self.place(job, pool)
            self.join(job, resumed=False)
        elif job["state"] in QUEUED:
            self.place(job, pool)
        elif job["state"] == "ASSIGNED":
            there = pool == job["pool"] and worker == job["attempts"][-1]["lead"]
            job["due"] = None if there else pool

    def retry(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is None or job["state"] in (*OPEN, "COMPLETED", "REJECTED"):
            return
        if job["left"] is not None:
            failed = [
                member["id"]
                for _, member in sorted(job["members"].items())
                if member["state"] not in (*OPEN, "COMPLETED", "REJECTED")
            ]
            job["cancel"], job["closed"] = False, ""
            if job["left"]:
                self.enter(job)
            for each in failed:
                self.retry(each)
            return
        if job["attempts"]:
            job["attempts"][-1]["retried"] = True
        job["cancel"], job["requeues"] = False, 0
        self.enter(job)
        self.follow(job)

    def ready(self, fact: Body) -> None:
        node = self.nodes.setdefault(fact["node"], {"machine": "", "liveness": "fresh"})
        held = node["machine"] not in ("", fact["machine"]) and any(
            worker["node"] == fact["node"] and not worker["retired"]
            for worker in self.workers.values()
        )
        if held and node["liveness"] != "gone":
            node.setdefault("intruders", []).append(fact["writer"])
            return
        born = {"node": fact["node"], "retired": False, "cursor": 0, "next": 0, "incarnation": 0}
        worker = self.workers.setdefault(fact["worker"], born)
        incarnation = fact.get("incarnation", 0)
        if incarnation != 0 and incarnation < worker["incarnation"]:
            return
        node.update(machine=fact["machine"], liveness="fresh")
        worker.update(writer=fact["writer"], incarnation=incarnation, retired=False)
        self.advance(worker, fact["cursor"])

    def advance(self, worker: Body, cursor: int) -> None:
        if cursor <= worker["next"]:
            worker["cursor"] = max(worker["cursor"], cursor)

    def worker_fact(self, fact: Body) -> None:
        worker = self.workers[fact["worker"]]
        if fact["writer"] in self.nodes[worker["node"]].get("intruders", ()):
            return
        if fact["kind"] == "retire":
            worker["retired"] = worker["retired"] or fact["writer"] == worker["writer"]
        elif fact["kind"] != "skip":
            job, attempt = self.find(fact)
            if job is not None and attempt is not None:
                getattr(self, "fact_" + fact["kind"])(fact, job, attempt)
        self.advance(worker, fact["cursor"])

    def fact_start(self, fact: Body, job: Body, attempt: Body) -> None:
        if attempt["started_at"] is None:
            attempt["started_at"] = fact["at"]
        self.mark_started(job, attempt)

    def fact_finish(self, fact: Body, job: Body, attempt: Body) -> None:
        if attempt["phase"] == ENDED and attempt["rc"] is not None:
            return
        attempt["rc"], attempt["started_at"] = fact["rc"], fact["started_at"]
        attempt["report"] = fact.get("report") or {}
        self.settle(job, attempt, self.cost(attempt, fact["ended_at"]))
        attempt["phase"] = ENDED
        if attempt is not job["attempts"][-1]:
            return
        job["due"] = None
        stopped = fact["outcome"] == "stopped"
        gave_way = fact["outcome"] in ("stopped", "exclusive")
        goes_back = (stopped and attempt["stop"]) or (gave_way and self.may_run_again(job, attempt))
        yields = attempt["stop"] == "its quantum is over" and not job["cancel"]
        if yields:
            goes_back = stopped and fact["rc"] == 75
        if goes_back and not job["cancel"] and job["state"] in OPEN:
            return
        if job["state"] == "NODE_FAIL":
            self.reopen(job, "RUNNING")
        if yields:
            state = "COMPLETED" if fact["rc"] == 0 else "FAILED"
        elif stopped:
            state = "CANCELLED"
        else:
            state = OUTCOMES.get(fact["outcome"], "COMPLETED" if fact["rc"] == 0 else "FAILED")
        self.end(job, state)

    def fact_lost(self, fact: Body, job: Body, attempt: Body) -> None:
        if attempt["phase"] == ENDED:
            return
        attempt["ran"] = fact.get("ran", True)
        is_last = attempt is job["attempts"][-1]
        if attempt["ran"]:
            self.settle(job, attempt, self.cost(attempt, fact["at"]))
        elif not is_last or job["cancel"]:
            self.settle(job, attempt, 0)
        attempt["phase"] = ENDED
        self.give_up(job, attempt)
        may_go_back = self.may_run_again(job, attempt) and not job["cancel"]
        if is_last and may_go_back and job["state"] == "NODE_FAIL":
            self.reopen(job, "RUNNING")

    # --- seen

    def seen(self, seen: Body) -> None:
        if seen["kind"] == "node":
            node = self.nodes.setdefault(seen["node"], {"machine": ""})
            node["liveness"] = seen["liveness"]
        elif seen["kind"] == "artifact":
            self.artifacts.add(seen["path"])
        elif seen["kind"] == "refused":
            self.writers[seen["writer"]] = max(self.writers[seen["writer"]], seen["n"] + 1)
        elif seen["kind"] == "claim":
            job, attempt = self.find(seen)
            if job is None or attempt is None or attempt["phase"] > REVOKING:
                return
            if seen["owner"] == "start":
                self.mark_started(job, attempt)
                return
            attempt["ran"] = False
            if attempt is not job["attempts"][-1] or job["state"] not in OPEN:
                self.settle(job, attempt, 0)
            attempt["phase"] = ENDED

    # --- decisions

    def nothing(self, decision: Body) -> None:
        """No job's state rests on it."""

    decided_elect = decided_deny = decided_reserve = decided_unreserve = nothing
    decided_block_node = decided_probe_node = decided_free_node = nothing

    def decided_hold(self, decision: Body) -> None:
        job = self.jobs[decision["job"]]
        if job["state"] == "PENDING":
            self.leave_for(job, "HELD")

    def decided_reject(self, decision: Body) -> None:
        self.end(self.jobs[decision["job"]], "REJECTED")

    def decided_expire(self, decision: Body) -> None:
        self.end(self.jobs[decision["job"]], "EXPIRED")

    def decided_never(self, decision: Body) -> None:
        self.end(self.jobs[decision["job"]], "DEPENDENCY_NEVER")

    def decided_again(self, decision: Body) -> None:
        self.reopen(self.jobs[decision["job"]], "HELD")

    def decided_resume(self, decision: Body) -> None:
        self.queue(self.jobs[decision["job"]])

    def decided_admit(self, decision: Body) -> None:
        whole = self.jobs[decision["job"]]
        for job in (whole, *self.fresh(whole)):
            waits = self.waits(job)
            if waits:
                self.leave(job)
            job["share"] = f"{decision['organization']}/{decision['workload_class']}"
            self.place(job, job["pool"])
            if waits:
                self.join(job, resumed=False)

    def decided_assign(self, decision: Body) -> None:
        job = self.named(decision["job"])
        assert job is not None
        self.dispatch(job, decision)
        job["state"] = "ASSIGNED"
        attempt: Body = {
            "phase": ASSIGNED,
            "slots": len(decision["slots"]),
            "lead": decision["slots"][0],
            "cost": decision["cost_ms"],
            "factor": self.factors.get(job["pool"], 0),
            "report": {},
            "weight": decision["weight"],
            "rate": self.rate(job),
            "assigned_at": self.now,
            "started_at": None,
            "rc": None,
            "ran": True,
            "stop": "",
            "retried": False,
            "settled": False,
        }
        job["attempts"].append(attempt)
        assert decision["attempt"] == len(job["attempts"])
        self.message(decision["slots"][0], decision["message"])
        self.follow(job)

    def rate(self, job: Body) -> tuple[int, int]:
        threshold = self.thresholds.get(job["pool"], 0)
        return (job["memory"], threshold) if 0 < threshold < job["memory"] else (1, 1)

    def decided_stop(self, decision: Body) -> None:
        job, attempt = self.found(decision)
        attempt["stop"] = decision["reason"]
        if attempt["phase"] == STARTED:
            attempt["phase"] = STOPPING
            if attempt is job["attempts"][-1] and job["state"] in OPEN:
                job["state"] = "STOPPING"
        self.message(decision["worker"], decision["message"])

    def decided_revoke(self, decision: Body) -> None:
        self.found(decision)[1]["phase"] = REVOKING

    def decided_requeue(self, decision: Body) -> None:
        job = self.jobs[decision["job"]]
        last = job["attempts"][-1]
        if job["state"] not in OPEN:
            self.reopen(job, "RUNNING")
        if job["due"] is None:
            job["requeues"] += decision.get("counted", True)
        else:
            self.give_back(job, last)
            self.place(job, job["due"])
            job["due"] = None
        if job["cancel"]:
            self.end(job, "CANCELLED")
        elif job["requeues"] > REQUEUES_MAX:
            job["state"] = "HELD"
        else:
            self.queue(job, resumed=not last["ran"])
        self.give_back(job, last)

    def give_back(self, job: Body, attempt: Body) -> None:
        if not attempt["ran"]:
            self.settle(job, attempt, 0)

    def decided_block(self, decision: Body) -> None:
        self.blocked.add(decision["flow"])

    def decided_free(self, decision: Body) -> None:
        flow = self.flows[decision["flow"]]
        self.blocked.discard(decision["flow"])
        level = self.level(decision["flow"], but=decision["flow"])
        flow["since"] = max(flow["since"], level - decision.get("credit", 0))

    def decided_lost(self, decision: Body) -> None:
        job, attempt = self.found(decision)
        attempt["phase"] = LOST
        if attempt["started_at"] is None:
            attempt["started_at"] = attempt["assigned_at"]
        self.settle(job, attempt, self.cost(attempt, self.now))
        self.give_up(job, attempt)

    def decided_found(self, decision: Body) -> None:
        job, attempt = self.found(decision)
        attempt["phase"] = STOPPING if attempt["stop"] else STARTED
        attempt["retried"] = False
        self.reopen(job, "STOPPING" if attempt["stop"] else "RUNNING")

    def decided_overrun(self, decision: Body) -> None:
        self.book(*self.found(decision), decision["cost_ms"])

    def found(self, decision: Body) -> tuple[Body, Body]:
        job, attempt = self.find(decision)
        assert job is not None
        assert attempt is not None
        return job, attempt

    def message(self, worker: str, n: int) -> None:
        assert n == self.workers[worker]["next"]
        self.workers[worker]["next"] = n + 1
