"""The examples that the demo can play: what each is made of, and its checker."""

from clonos.demo.scenes.enrich import ENRICH
from clonos.demo.scenes.orders import ORDERS
from clonos.demo.scenes.wordcount import WORDCOUNT

SCENES = {scene.name: scene for scene in (WORDCOUNT, ORDERS, ENRICH)}

__all__ = ["SCENES"]
