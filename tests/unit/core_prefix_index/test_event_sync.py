"""A numbered stream is followed without believing a gap."""

from tonnage_core.prefix_index.event_sync import Apply, Effect, EventSync, Note, Replay, Reset


class Follower:
    """Carries out effects: `seen` is what the view was built from since its last reset."""

    def __init__(self, *, replays: bool = True, max_held: int = 100) -> None:
        self.notes: list[Note] = []
        self.sync: EventSync[str] = EventSync(self.notes.append, replays=replays, max_held=max_held)
        self.seen: list[str] = []
        self.complete = False
        self.asked: list[int] = []

    def do(self, effects: list[Effect[str]]) -> None:
        for effect in effects:
            if isinstance(effect, Reset):
                self.seen, self.complete = [], effect.complete
            elif isinstance(effect, Replay):
                self.asked.append(effect.first)
            else:
                assert isinstance(effect, Apply)
                self.seen.append(effect.batch)

    def connect(self) -> None:
        self.do(self.sync.connected())

    def stream(self, *numbers: int, publisher: bytes = b"") -> None:
        for number in numbers:
            self.do(self.sync.message(number, publisher, str(number)))

    def replay(self, *numbers: int) -> None:
        for number in numbers:
            self.do(self.sync.replayed(number, str(number)))
        self.do(self.sync.replay_ended())


def test_a_follower_begins_with_everything_the_publisher_still_has() -> None:
    follower = Follower()
    follower.connect()
    assert follower.asked == [0] and not follower.sync.live
    follower.stream(2, 3)
    follower.replay(0, 1, 2)
    assert follower.seen == ["0", "1", "2", "3"] and follower.complete and follower.sync.live
    follower.stream(4)
    assert follower.seen[-1] == "4" and follower.notes == []


def test_history_that_the_publisher_dropped_leaves_the_view_incomplete() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(5, 6)
    assert follower.seen == ["5", "6"] and not follower.complete and follower.notes == [Note.LOST]


def test_an_engine_that_has_published_nothing_is_known_to_be_empty() -> None:
    follower = Follower()
    follower.connect()
    follower.replay()
    assert follower.complete and follower.sync.live
    follower.stream(0)
    assert follower.seen == ["0"]


def test_a_gap_is_filled_by_replay_before_what_came_after_it() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0)
    follower.stream(3, 4)
    assert follower.asked == [0, 1] and follower.seen == ["0"]
    follower.replay(1, 2, 3)
    assert follower.seen == ["0", "1", "2", "3", "4"] and follower.complete
    assert follower.notes == [Note.GAP]


def test_a_gap_that_cannot_be_filled_empties_the_view() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0, 1)
    follower.stream(9)
    follower.replay(7, 8, 9)
    assert follower.seen == ["7", "8", "9"] and not follower.complete
    assert follower.notes == [Note.GAP, Note.LOST]


def test_a_replay_that_brings_nothing_is_not_asked_for_again_and_again() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0)
    follower.stream(5)
    follower.replay()
    assert follower.seen == ["5"] and follower.asked == [0, 1] and not follower.complete
    follower.stream(6)
    assert follower.seen == ["5", "6"]


def test_a_second_gap_during_a_replay_is_asked_for_too() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0)
    follower.stream(2, 5)
    follower.replay(1, 2)
    assert follower.asked == [0, 1, 3]
    follower.replay(3, 4, 5)
    assert follower.seen == ["0", "1", "2", "3", "4", "5"] and follower.complete


def test_a_number_that_falls_back_is_a_new_process() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0, 1, 2)
    follower.stream(0)
    assert follower.notes == [Note.RESTART] and follower.seen == []
    follower.replay(0)
    assert follower.seen == ["0"] and follower.complete


def test_another_publisher_under_a_higher_number_is_a_new_process() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0)
    follower.stream(1, publisher=b"one")
    follower.stream(2, publisher=b"two")
    assert follower.notes == [Note.RESTART] and follower.asked == [0, 0]
    follower.replay(0, 1, 2)
    assert follower.seen == ["0", "1", "2"]


def test_a_broken_connection_forgets_and_begins_again() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0, 1)
    follower.do(follower.sync.disconnected())
    assert follower.seen == [] and not follower.complete and not follower.sync.live
    follower.stream(2)
    assert follower.seen == []
    follower.connect()
    follower.replay(0)
    assert follower.seen == ["0"] and follower.complete


def test_without_replay_only_a_stream_from_its_beginning_is_complete() -> None:
    late, early = Follower(replays=False), Follower(replays=False)
    late.connect()
    late.stream(7, 8)
    assert late.seen == ["7", "8"] and not late.complete
    early.connect()
    early.stream(0, 1)
    assert early.seen == ["0", "1"] and early.complete
    early.stream(3)
    assert early.seen == ["3"] and not early.complete and early.notes == [Note.GAP, Note.LOST]


def test_a_replay_without_an_answer_leaves_the_stream_usable() -> None:
    follower = Follower()
    follower.connect()
    follower.stream(4, 5)
    follower.do(follower.sync.replay_failed())
    assert follower.seen == ["4", "5"] and not follower.complete and follower.sync.live
    follower.stream(6)
    assert follower.seen == ["4", "5", "6"]


def test_batches_held_for_a_replay_are_bounded_and_what_fell_out_is_asked_for() -> None:
    follower = Follower(max_held=2)
    follower.connect()
    follower.stream(1, 2, 3, 4)
    follower.replay(0)
    assert follower.asked == [0, 1] and follower.seen == ["0"]
    follower.replay(1, 2, 3, 4)
    assert follower.seen == ["0", "1", "2", "3", "4"] and follower.complete


def test_late_answers_of_an_old_replay_are_ignored() -> None:
    follower = Follower()
    follower.connect()
    follower.replay(0)
    follower.do(follower.sync.replayed(1, "1"))
    follower.do(follower.sync.replay_ended())
    follower.do(follower.sync.replay_failed())
    assert follower.seen == ["0"] and follower.sync.live
