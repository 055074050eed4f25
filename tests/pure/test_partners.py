"""When a partner that has ended counts as lost: not before what it sent last can have come."""

import threading
from types import SimpleNamespace

from hpcomm.agree import partners


def test_a_partner_is_lost_only_some_time_after_its_end_was_seen(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(partners.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(partners.runtime, "may_call_mpi", lambda: True)
    tried = object.__new__(partners.Partners)
    region = SimpleNamespace(gone=False, ended=False)
    tried.__dict__.update(
        _gone=set(),
        _letters=SimpleNamespace(failed=set),
        _since={},
        _lock=threading.Lock(),
        _regions=[(3, region)],
        _processes=[],
        _hear=lambda: None,
    )
    assert tried.lost() == set()
    region.gone = True
    assert tried.gone() == {3}
    assert tried.lost() == set()
    now[0] += 0.9
    assert tried.lost() == set()
    now[0] += 0.2
    assert tried.lost() == {3}
