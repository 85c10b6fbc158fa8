"""What Clonos brings along so that Python is all a fresh machine needs: Java, the jars and a Kafka broker."""
