"""A kombu without batches sends the runs of a batch one by one, with the same results."""

import runpy

from celery import Celery
from kombu import Producer

from celery_dynbeat.broker import compat, publisher
from tests.unit.broker.test_publisher import outgoing


def test_a_kombu_without_batches_sends_each_message(monkeypatch):
    monkeypatch.delattr(Producer, "batch", raising=False)
    without = runpy.run_path(compat.__file__)
    monkeypatch.setattr(publisher, "publish_batch", without["publish_batch"])
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    batch = [outgoing(), outgoing(serializer="unknown")]
    sending = publisher.Publisher(app)

    result = sending.publish(batch[:1])
    refused = sending.publish(batch[1:])

    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
        assert queue.qsize() == 1
        queue.clear()
    sending.close()
    assert result.sent == [batch[0].run_id]
    assert list(refused.refused) == [batch[1].run_id]
