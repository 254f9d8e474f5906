"""The small world the embedded model knows: every word list and fixed sentence of its training
data.
"""

from __future__ import annotations

# fmt: off
WORDS = (
    "apple", "river", "stone", "cloud", "tree", "house", "bird", "fish", "moon", "sun", "star", "lamp", "chair",
    "table", "book", "pen", "water", "fire", "wind", "rain", "snow", "road", "car", "boat", "dog", "cat", "horse",
    "cow", "lion", "bear", "milk", "rice", "tea", "gold", "king", "queen", "door", "garden", "lake", "sea",
)
# fmt: on
NAMES = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Portugal": "Lisbon",
    "Canada": "Ottawa",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Kenya": "Nairobi",
}
OPPOSITES = {
    "hot": "cold",
    "cold": "hot",
    "big": "small",
    "small": "big",
    "up": "down",
    "down": "up",
    "left": "right",
    "right": "left",
    "day": "night",
    "night": "day",
    "fast": "slow",
    "slow": "fast",
    "old": "new",
    "new": "old",
    "open": "closed",
    "happy": "sad",
    "black": "white",
    "white": "black",
    "full": "empty",
    "yes": "no",
}

SHAPES = ("circle", "square", "triangle")
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (45, 80, 220),
    "yellow": (240, 210, 40),
}
BACKGROUNDS = ((255, 255, 255), (255, 255, 255), (235, 235, 235), (20, 20, 20))

SELF = "I am a small demo model."
ABILITIES = (
    "I can repeat, reverse and count words, add small numbers, and describe images of shapes."
)
UNKNOWN = "I do not know that."
NO_IMAGE = "There is no image."
STORY = (
    "Once upon a time there was a small dog. The dog lived in a house by the lake. Every day the"
    " dog walked to the forest and came home at night. The end."
)
POEM = (
    "The sun is in the sky,\nthe bird is in the tree.\n\nThe moon is in the night,\nthe fish is in"
    " the sea."
)
STEPS = "1. Boil the water.\n2. Add the tea.\n3. Wait three minutes.\n\nEnjoy your tea!"

HELPFUL = "You are a helpful assistant."
UPPER_CASE = "Answer in upper case."
JSON_ONLY = "Answer only with JSON."
CALL_TOOLS = "Call the tools for what you do not know."
