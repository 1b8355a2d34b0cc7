"""The format `pulsar` for Spark 4.2."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from cloud_jobs.pulsar_source.batch import PulsarBatchReader
from cloud_jobs.pulsar_source.columns import spark_schema
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.stream import PulsarStreamReader


class PulsarDataSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Reads Pulsar topics into Spark, as a stream through a durable subscription or as a batch through readers.

    Stream::

        from cloud_jobs.pulsar_source import PulsarDataSource

        spark.dataSource.register(PulsarDataSource)
        messages = (
            spark.readStream.format("pulsar")
            .option("clusters", "hq=pulsar://127.0.0.1:6650|http://127.0.0.1:8080")
            .option("topics", "persistent://fleet/telemetry-eu/batches,persistent://fleet/telemetry-us/batches")
            .option("subscription", "ingest")
            .option("maxMessagesPerTrigger", "20000")
            .load()
        )

    Batch: the same options with `spark.read`; `subscription` is not needed, `startingPosition` and `endingPosition`
    bound it, `readCompacted` gives the newest value of each key.

    Columns: `value binary, key string, properties map<string,string>, publish_time timestamp, event_time timestamp,
    topic string, message_id string, cluster string, malformed string`.

    The subscription belongs to one query. Its position moves when Spark reports a batch as done; executors
    acknowledge nothing. Delivery is at least once, and exactly once into a sink that knows the batch id.
    `PYSPARK_PYTHON` must be the interpreter that has this package. Every option is in docs/pulsar-source.md.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "pulsar"

    def schema(self) -> str:
        """The columns that the options want, as Spark's DDL; OptionError for options that do not fit."""
        return spark_schema(PulsarOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> PulsarBatchReader:  # noqa: ARG002  # the columns are ours
        """The batch reader; OptionError for options that do not fit."""
        return PulsarBatchReader(PulsarOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> PulsarStreamReader:  # noqa: N802, ARG002  # Spark's name
        """The streaming reader; OptionError for options that do not fit."""
        return PulsarStreamReader(PulsarOptions.parse(self.options))
