"""Scala sources of Clonos: operators of Spark that Java cannot extend, because their traits need bridges of Scala.

`clonos.spark.classes` compiles them with the compiler among PySpark's jars.
"""
