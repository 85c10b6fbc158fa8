"""Clusters that use an older version of Kafka's transactions."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from clonos.settings import KafkaSettings
from clonos.spark.internals import jvm_of


def downgrade_transactions(spark: SparkSession, kafka: KafkaSettings, version: int) -> None:
    """Let the cluster use an older version of transactions."""
    admin_api: Any = jvm_of(spark).org.apache.kafka.clients.admin
    admin = admin_api.Admin.create({"bootstrap.servers": kafka.bootstrap_servers})
    update = admin_api.FeatureUpdate(version, admin_api.FeatureUpdate.UpgradeType.SAFE_DOWNGRADE)
    admin.updateFeatures({"transaction.version": update}, admin_api.UpdateFeaturesOptions()).all().get()
    admin.close()
