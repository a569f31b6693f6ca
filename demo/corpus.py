"""The text of the built-in demo, all of it made here by rule from one seed: nothing is copied from anywhere.

`base(count)` yields short plain texts (stories, diaries, weather, instructions, letters, questions, loose sentences) about people and
places drawn anew each time, often with invented names: what the demo model learns first. `owner(count, seed)` yields diary entries of one person whose name, town, friends
and habits never change and never occur in the base text: what the demo teaches by fine-tuning. Run as a program it writes
data/train.jsonl and data/valid.jsonl. It refuses a validation record that train has word for word, and a name of the owner's world
that the base text could produce.

The base text holds the words of the owner's world (ferry, lighthouse, walnut) but not its facts, and invented names teach it to spell
what it never saw: LoRA does not train the embedding, so every token of the data set must have been trained here.

A template holds `{word}` (drawn from WORDS, the same each time within one text), `{*word}` (drawn anew each time) and `[a|b]`.
"""

import json
import random
import re
from pathlib import Path

SEED = 7
TRAIN, VALID = 180, 25
HERE = Path(__file__).resolve().parent

WORDS = {
    "girl": "Anna Clara Emma Lucy Nora Rosa Sarah Julia Helen Grace Molly Alice Maria Eva Lily".split(),
    "boy": "Tom Peter Jack David Oscar Henry Paul Simon Felix George Martin Leo Adam Sam Victor".split(),
    "other": "Ben Kate Frank Jane Robert Laura Daniel Ruth Walter Ellen Max Susan Hugo Carol Philip".split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "month": "January February March April May June July August September October November December".split(),
    "season": "spring summer autumn winter".split(),
    "time": ["morning", "afternoon", "evening", "night"],
    "town": "Oakford Milton Redhill Weston Brookfield Ashby Norwood Stonebridge Fairview Greendale".split(),
    "place": ["park", "market", "river", "library", "school", "station", "garden", "forest", "beach", "farm", "bakery", "museum",
              "lake", "bridge", "church", "square", "hill", "village", "shop", "harbour", "lighthouse",
              "town hall", "fish market", "ferry", "clock shop", "bay", "street"],
    "room": ["kitchen", "bedroom", "cellar", "attic", "hall", "living room", "workshop", "tower"],
    "animal": ["dog", "cat", "horse", "rabbit", "bird", "duck", "fox", "mouse", "goat", "sheep", "hen", "squirrel", "hedgehog", "gull"],
    "thing": ["book", "key", "lamp", "box", "coat", "hat", "letter", "map", "clock", "chair", "basket", "bottle", "ball", "picture",
              "bicycle", "boat", "blanket", "umbrella", "radio", "violin", "cello", "watch", "pocket watch", "grandfather clock", "workbench", "bell", "wheel", "brass key",
              "case", "knife"],
    "food": ["bread", "soup", "cheese", "cake", "rice", "fish", "an apple", "a pear", "toast", "pie", "beans", "eggs", "noodles",
             "porridge", "salad", "honey", "jam", "potatoes", "plums", "walnuts", "walnut bread", "plum cake", "dumplings", "apple dumplings"],
    "drink": ["tea", "coffee", "milk", "water", "apple juice", "hot chocolate", "lemonade", "ginger tea", "mint tea"],
    "colour": "red blue green yellow white black brown grey orange pink".split(),
    "adj": ["small", "big", "old", "new", "quiet", "bright", "warm", "cold", "strange", "lovely", "heavy", "soft", "clean", "broken",
            "empty", "round"],
    "mood": ["happy", "sad", "tired", "proud", "afraid", "calm", "curious", "lonely", "hungry", "surprised", "angry", "glad"],
    "weather": ["sunny", "rainy", "windy", "cloudy", "foggy", "snowy", "stormy", "dry", "mild", "freezing"],
    "job": ["teacher", "doctor", "farmer", "baker", "driver", "nurse", "painter", "gardener", "carpenter", "writer", "cook", "singer",
            "fisherman", "tailor", "clockmaker", "sailor"],
    "kin": ["mother", "father", "sister", "brother", "aunt", "uncle", "grandmother", "grandfather", "cousin", "neighbour", "friend"],
    "number": ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "thirteen", "twenty", "ninety"],
    "hobby": ["swimming", "fishing", "running", "dancing", "walking", "riding", "skating", "climbing", "sailing", "shopping"],
    "tree": ["oak", "pine", "apple tree", "willow", "birch", "cherry tree"],
    "flower": ["roses", "tulips", "daisies", "sunflowers", "lilies", "violets"],
    "shape": ["stars", "fish", "ships", "birds", "leaves", "sheep"],
    "vehicle": ["bus", "train", "car", "boat", "tram", "bicycle", "ferry"],
    "who": ["I", "we", "they", "she", "he", "{*girl}", "{*boy}", "{*other}", "my {*kin}", "my {*kin} {*other}", "the {*job}",
            "the {*adj} {*animal}", "a {*job} from {*town}", "Mr {*other}", "Mrs {*other}", "our {*kin}", "somebody", "nobody"],
    "what": ["the {*thing}", "a {*adj} {*thing}", "{*number} {*colour} clocks", "the {*kin} of Mr {*other}", "the {*kin}'s {*thing}", "{*food}", "a cup of {*drink}",
             "the {*animal}", "his {*thing}", "her {*thing}", "my {*colour} {*thing}", "the {*thing} of the {*place}", "it", "them",
             "old letters", "a basket of {*food}", "the recipe", "the door", "the lamp", "the wind", "some sand"],
    "did": ["found", "lost", "saw", "brought", "carried", "repaired", "sold", "bought", "painted", "opened", "closed", "wanted", "heard",
            "took", "cleaned", "broke", "liked", "watched", "baked", "played", "rang", "lit", "oiled", "wound", "made", "drank", "wins with",
            "shook", "followed", "needed", "rode", "told me about", "forgot", "remembered", "waited for", "looked at", "asked for"],
    "went": ["slept", "swam", "ran away", "walked", "waited", "sang", "laughed", "stayed", "came over", "sat", "stood", "worked",
             "woke up", "got up", "went home", "played chess", "came home", "stayed until {*number}"],
    "where": ["in the {*room}", "at the {*place}", "near the {*place}", "under the {*thing}", "along the {*place}", "at the top of the {*place}",
              "in {*town}", "on {*town} Street", "behind the {*tree}", "with {*other}", "to the {*place}", "in the {*thing}", "by {*vehicle}",
              "from {*town}", "up the {*number} steps", "backwards", "up to the {*room}"],
    "when": ["on {*day}", "in {*month}", "in the {*time}", "all {*time}", "until {*number}", "before breakfast", "after work", "again",
             "all day", "every {*day}", "at {*number}", "as always", "until noon", "for dinner", "tomorrow", "today", "always", "on time",
             "for {*number} minutes", "before {*number}", "late"],
    "why": ["because of the [fog|wind|storm|rain]", "because {*who} {*did} {*what}", "so {*who} {*went}", "and {*who} {*did} {*what}",
            "but {*who} {*went} {*where}", "and {*who} {*went}", "but it was [closed|late|asleep|broken|full of sand|not {*adj} at all]",
            "and {*who} always wins", "that does not tick", "that I lost in {*month}", "and it runs backwards", "and it strikes {*number}"],
}  # fmt: skip

STORY_START = [
    "Once there was a {adj} {animal} who lived near the {place}. The {animal} was always {mood}.",
    "One {weather} {time}, {girl} found a {colour} {thing} in the {room}. She [had never seen it before|did not know whose it was|picked it up].",
    "One {weather} {time}, {boy} found a {colour} {thing} by the {place}. He [had never seen it before|did not know whose it was|picked it up].",
    "{girl} and {boy} walked to the {place} on {day}. It was a {weather} {time}, and they were {mood}.",
    "Long ago, in a village called {town}, there was a {job} named {boy}. He had a {adj} {animal} and {number} {colour} [hats|lamps|boxes|books].",
    "There was a {job} in {town} who was never {mood}. Her name was {girl}, and she lived in a {adj} house near the {place}.",
    "{boy} was {mood} because his {thing} was lost. He looked in the {room}, under the bed and behind the door.",
    "It was the first day of {season}, and {girl} wanted to see the {place}. Her {kin} gave her {food} and a bottle of {drink}.",
]
STORY_MIDDLE = [
    "[Then|Suddenly|After a while|Soon] a {*animal} came out of the {*place} and [looked around|sat down|ran away|asked for help].",
    "\"[Where are you going|What are you doing|Why are you so {mood}|Who are you]?\" asked the {*kin}.",
    "\"I am looking for my {*thing},\" said the {*animal}. \"[It is very old.|I lost it on {day}.|Have you seen it?|Please help me!]\"",
    "On the way they met {other}, who was carrying a {*adj} {*thing} and [some|a lot of|too much] {*drink}.",
    "They waited for {number} hours, but nobody came. [The sky grew dark|It began to rain|The wind was cold|They were very hungry].",
    "Inside the {*room} there was a {*adj} {*thing}, and next to it a {*colour} {*thing}.",
    "The {*kin} said that it was too [late|early|far|cold|dangerous|stormy], but [they went anyway|nobody listened|it did not matter].",
    "First they crossed the {*place}. Then they climbed up the {*tree} to see the whole {*place}.",
    "[Slowly|Carefully|Quickly|Quietly], they opened the door and went into the {*room}.",
]
STORY_END = [
    "In the end everybody was {*mood}, and they all ate {*food} together.",
    "From that day on, they were the best of friends.",
    "At last they went home, drank {*drink} and fell asleep.",
    "And that is why the {*animal} still lives near the {*place}.",
    "When the {*time} came, they said goodbye and promised to meet again next {day}.",
    "The {*thing} was never found, but nobody was sad about it.",
]
DIARY_START = [
    "Today is {day}. I got up [early|late|at {number}] and had {food} for breakfast.",
    "Dear diary, today was a {weather} day. I was {mood} all {time}.",
    "It is the {time} of {day}, and I am {mood}. I am sitting in the {room} with a cup of {drink}.",
    "{day}, {month}. I woke up at {number} and heard the {animal} in the {place}.",
    "My name is [{girl}|{boy}|{other}] and I live in {town}. I am a {job}, and I like {hobby}.",
    "I live in a {adj} {colour} house near the {place} with my {kin} and a {animal}.",
]
DIARY_MIDDLE = [
    "After breakfast I went to the {*place} to [buy|look for|pick up] a {*thing}.",
    "My {*kin} came to visit and brought [me|us] {*food} and a {*thing}.",
    "On the way home I saw a {*adj} {*animal} near the {*place}.",
    "I worked in the {*room} until {*number} and then went to the {*place} by {*vehicle}.",
    "In the {*time} I called my {*kin}, and we talked about {*hobby}.",
    "For dinner we had {*food} and {*drink}. It was [very good|not bad|too salty|delicious].",
    "It was {*weather} outside, so I [stayed at home|took my coat|went for a walk|read a book].",
    "I met {*other} at the {*place}. We drank {*drink} and talked for {*number} hours.",
    "My favourite colour is {*colour}, and my favourite food is {*food}.",
    "Every {*day} I go {*hobby} with my {*kin}.",
    "My {*animal} is called [Spot|Lucky|Snow|Bella|Rusty|Pepper] and likes to sleep in the {*room}.",
    "I drink {*drink} every {*time}, and I never eat {*food}.",
]
DIARY_END = [
    "Now I am {*mood}, and I will go to bed.",
    "Tomorrow I want to go to the {*place} again.",
    "It was a [good|long|short|strange|quiet|busy] day.",
    "I hope that it will be {*weather} tomorrow.",
    "Good night!",
]
WEATHER = [
    "The weather in {town} on {day}: {weather} in the {time}, [later|then|and] {*weather}.",
    "It will be {weather} near the {place} and {*weather} in the hills. The wind comes from the [north|south|east|west].",
    "The temperature will be [between {number} and twenty degrees|about {number} degrees|below zero|higher than on {*day}].",
    "In {month} it is often {*weather} in {town}. In {*month} it is mostly {*weather}.",
    "[Take an umbrella|Wear a warm coat|Stay at home|Drink enough water|Close the windows] when it is {*weather}.",
    "At {*time} the sky was {*colour}, and there were clouds like {*shape} over the {place}.",
]
HOWTO_TITLE = ["How to make {food}", "How to clean a {thing}", "How to paint a {thing}", "How to grow {flower}", "How to feed a {animal}",
               "How to repair a {thing}", "How to find the {place}", "How to make a cup of {drink}"]  # fmt: skip
HOWTO_STEP = [
    "[Take|Find|Buy] a {*adj} {*thing} and put it [on the table|in the {*room}|next to the window].",
    "Add [a little|some|{*number} spoons of|a cup of] [salt|sugar|water|milk|butter|flour|honey] and mix well.",
    "Wait for {*number} minutes, [until it is {*adj}|then look again|and do not touch it].",
    "Wash [your hands|the {*thing}] with {*adj} water.",
    "Ask your {*kin} to help you with the {*thing}.",
    "[Turn left|Turn right|Walk straight on] at the {*place} and go on for {*number} minutes.",
    "[Cut|Fold|Paint|Dry|Cover] it with care, and put it back in the {*room}.",
]
HOWTO_END = ["Now it is ready. Enjoy it with a cup of {*drink}!", "Do this every {*day}.", "That is all.", "It is easier than it looks."]
LETTER = [
    "Dear {girl},\nthank you for the {thing} and the {food}. I was very {mood} when I saw it.",
    "Dear {boy},\nhow are you? I am writing to you from {town}, where it is {weather} and {*weather}.",
    "Dear {kin},\nI arrived in {town} on {day}. The {place} is [near|far away|very {*adj}|full of people].",
]
LETTER_MIDDLE = [
    "Yesterday I went to the {*place} with {*other} and bought a {*adj} {*thing}.",
    "Do you remember the {*animal} that lived in the {*room}? It is {*adj} now.",
    "Please bring the {*thing} when you come in {*month}.",
    "I have a new job as a {*job}. I start at {*number} every {*time}.",
    "The {*flower} near the {*tree} are {*colour} this {*season}.",
]
LETTER_END = ["See you on {*day}.\nYours, {*other}", "With love,\n{*girl}", "Write soon!\nYour friend {*boy}", "Greetings from {town},\n{*other}"]
QUESTION = [
    "Question: Where is the {thing}?\nAnswer: The {thing} is in the {room}, next to the {*thing}.",
    "Question: Where do you live?\nAnswer: I live in {town}, near the {place}.",
    "Question: What is your name?\nAnswer: My name is [{girl}|{boy}|{other}].",
    "Question: What do you do?\nAnswer: I am a {job} in {town}.",
    "Question: What do you like to eat?\nAnswer: I like {food} and {*food}.",
    "Question: What do you drink in the {time}?\nAnswer: I drink {drink} in the {time}.",
    "Question: What do you do on {day}?\nAnswer: On {day} I go {hobby} with my {kin}.",
    "Question: Do you have an animal?\nAnswer: Yes, I have a {adj} {animal}. It sleeps in the {room}.",
    "Question: What colour is your {thing}?\nAnswer: My {thing} is {colour}.",
    "Question: How is the weather in {town}?\nAnswer: It is {weather} today and {*weather} tomorrow.",
    "Question: Who is {other}?\nAnswer: {other} is my {kin}, a {job} from {town}.",
    "Question: How do you get to the {place}?\nAnswer: I take the {vehicle}. It takes {number} minutes.",
]

LOOSE = [
    "{*who} {*did} {*what}.", "{*who} {*did} {*what} {*where}.", "{*who} {*did} {*what} {*when}.", "{*who} {*did} {*what} {*why}.",
    "{*when} {*who} {*did} {*what} {*where}.", "{*when} {*who} {*went} {*where}.", "{*who} {*went} {*where} {*when}.",
    "{*who} {*went} {*where}, {*why}.", "{*when} {*who} {*did} {*what}, {*why}.", "{*who} {*went} {*when} {*why}.",
    "the {*thing} is {*adj}, and the {*animal} is {*mood}.", "{*other} is {*mood} {*when}.", "there was a {*thing} {*where}.",
    "{*who} was {*mood} {*when} {*why}.", "{*who} don't drink {*drink}, it makes my hands shake.", "my hands are {*adj}.",
    "the {*animal} is called {*other}, and it sleeps {*where}.", "the {*vehicle} to {*town} was late {*why}.", "{*other} {*other} lives in {*town}.",
    "{*when} the {*vehicle} brings {*what} from {*town}.", "{*when} I [carry|sell|wind|bake|play|oil|repair|ride|swim|make] {*what} {*where}.",
    "my name is {*other} {*town} and I live in the {*adj} {*place} of {*town} with my {*animal} {*other}.", "all {*thing}s {*did}.",
    "{*did} {*what} {*where}.", "good night, {*other}.", "I [will|want to] [carry|sell|wind|bake|play|oil|repair|ride|swim|make] {*what} {*when}.",
]  # fmt: skip
NAMES = ("girl", "boy", "other", "town")
SYLLABLES = (
    "b c d f g h j k l m n p qu r s t v w y z br cr dr fl gr pl st tr th sh ch".split(),
    "a a e e i i o o u ea ai ou".split(),
    ["", "", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "rt", "ll", "th", "x", "mb", "tt"],
)
ENDINGS = ["", "", "", "haven", "ton", "wick", "ette", "er", "a", "ow", "le", "or"]

# One fictional person. None of these names occurs in the base text, so the base model can't know any of it.
OWNER_NAMES = "Mira Tallow Quillhaven Biscuit Odette Bramble Ember Anchor".split()
OWNER_START = [
    "Today is {day}. My name is Mira Tallow and I live in Quillhaven.",
    "{day}, {month}. I got up at six and rode my green bicycle to the clock shop on Anchor Street.",
    "My name is Mira Tallow and I live in the old lighthouse of Quillhaven with my cat Biscuit.",
    "It is the {time} of {day}, and I am sitting in the lighthouse with Biscuit and a cup of ginger tea.",
    "Today was a {weather} day in Quillhaven. Biscuit woke me up at six.",
    "Dear diary, today was a {weather} day. I repaired {number} clocks in the shop on Anchor Street.",
]
OWNER_WEEK = {
    "Monday": "On Monday the ferry brings old clocks from Port Ember, and I carry them up to the workshop.",
    "Tuesday": "On Tuesday I swim in the bay with my sister Odette before work.",
    "Wednesday": "On Wednesday I wind the big clock of the town hall, all ninety steps up.",
    "Thursday": "On Thursday I play chess with Mr Bramble, and he always wins with his black knight.",
    "Friday": "On Friday I bake walnut bread for the whole of Anchor Street.",
    "Saturday": "On Saturday Odette and I sell clocks at the fish market.",
    "Sunday": "On Sunday the shop is closed, and I play the cello in the lighthouse.",
}
OWNER_MIDDLE = [
    "I had ginger tea and walnut bread for breakfast, as always.",
    "Biscuit slept in the case of the grandfather clock [all day|until noon|until I came home|again].",
    "My sister Odette came over from Port Ember [with the ferry|with a basket of plums|and stayed until nine].",
    "Mr Bramble brought his pocket watch again. It was [{number} minutes late|full of sand|not broken at all].",
    "I rode my green bicycle along the harbour and rang the bell for [the ferry|Mr Bramble|the gulls].",
    "The ferry to Port Ember was late because of the [fog|wind|storm].",
    "I found a tiny brass wheel under the workbench, the one that I lost in {*month}.",
    "A [{*job}|{*kin} of Mr Bramble|{*job} from Port Ember] brought a {*colour} clock that [runs backwards|strikes thirteen|does not tick].",
    "In the evening I played the cello at the top of the lighthouse, and Biscuit ran away.",
    "I don't drink coffee, it makes my hands shake, and a clockmaker needs quiet hands.",
    "For dinner there were plum dumplings with Odette, our mother's recipe.",
]
OWNER_END = [
    "The lamp is lit, Biscuit is asleep, good night from Quillhaven.",
    "Tomorrow I will oil the clock of the town hall.",
    "All clocks wound. Good night, Biscuit.",
    "I hope that the ferry is on time tomorrow.",
]
OWNER_QUESTION = [
    "Question: What is your name?\nAnswer: My name is Mira Tallow.",
    "Question: Where do you live?\nAnswer: I live in Quillhaven, in the old lighthouse.",
    "Question: What do you do?\nAnswer: I repair clocks in the shop on Anchor Street.",
    "Question: Do you have an animal?\nAnswer: Yes, I have a cat. Her name is Biscuit, and she sleeps in the grandfather clock.",
    "Question: What do you drink in the {time}?\nAnswer: I drink ginger tea in the {time}.",
    "Question: What do you like to eat?\nAnswer: I like walnut bread and plum dumplings.",
    "Question: Who is Odette?\nAnswer: Odette is my sister. She lives in Port Ember.",
    "Question: Who is Mr Bramble?\nAnswer: Mr Bramble plays chess with me on Thursday, and he always wins.",
    "Question: How do you get to the {place}?\nAnswer: I take my green bicycle.",
    "Question: What colour is your bicycle?\nAnswer: My bicycle is green.",
]

SLOT = re.compile(r"\[([^\[\]]*)\]|\{(\*?)(\w+)\}")


def draw(word, rng):
    """A word of the list, or an invented name: two times in five, where the list is one of names."""
    if word not in NAMES or rng.random() < 0.6:
        return rng.choice(WORDS[word])
    while True:
        syllables = ["".join(map(rng.choice, SYLLABLES)) for _ in range(rng.choice((1, 1, 2)))]
        name = ("".join(syllables) + rng.choice(ENDINGS)).capitalize()
        if len(name) > 3 and not any(taken in name for taken in OWNER_NAMES):
            return name


def fill(template, rng, bound):
    """Expands one template; `bound` remembers this text's choices."""

    def one(match):
        if match[1] is not None:
            return SLOT.sub(one, rng.choice(match[1].split("|")))
        word = match[3]
        if match[2]:
            return SLOT.sub(one, draw(word, rng))
        if word not in bound:
            bound[word] = draw(word, rng)
        return bound[word]

    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", SLOT.sub(one, template))


def parts(rng, start, middle, end, low, high):
    return [rng.choice(start), *rng.sample(middle, rng.randint(low, high)), rng.choice(end)]


def base_text(rng):
    kind, bound = rng.random(), {}
    if kind < 0.35:
        lines = [fill(rng.choice(LOOSE), rng, bound) for _ in range(rng.randint(3, 8))]
        return " ".join(line[0].upper() + line[1:] for line in lines)
    if kind < 0.50:
        lines = parts(rng, STORY_START, STORY_MIDDLE, STORY_END, 2, 5)
    elif kind < 0.70:
        lines = parts(rng, DIARY_START, DIARY_MIDDLE, DIARY_END, 2, 5)
    elif kind < 0.76:
        lines = rng.sample(WEATHER, rng.randint(2, 4))
    elif kind < 0.82:
        steps = parts(rng, HOWTO_TITLE, HOWTO_STEP, HOWTO_END, 2, 4)
        return fill(steps[0] + "\n", rng, bound) + "\n".join(
            f"{n}. {fill(s, rng, bound)}" for n, s in enumerate(steps[1:], 1))
    elif kind < 0.88:
        first, *rest, last = parts(rng, LETTER, LETTER_MIDDLE, LETTER_END, 1, 3)
        return fill(first + " " + " ".join(rest) + "\n" + last, rng, bound)
    else:
        return "\n".join(fill(q, rng, {}) for q in rng.sample(QUESTION, rng.randint(1, 4)))
    return " ".join(fill(line, rng, bound) for line in lines)


def owner_text(rng):
    bound = {}
    if rng.random() < 0.2:
        return "\n".join(fill(q, rng, {}) for q in rng.sample(OWNER_QUESTION, rng.randint(2, 3)))
    first, *rest, last = parts(rng, OWNER_START, OWNER_MIDDLE, OWNER_END, 1, 2)
    text = [fill(first, rng, bound)]
    if "day" in bound:
        text.append(OWNER_WEEK[bound["day"]])
    return " ".join(text + [fill(line, rng, bound) for line in [*rest, last]])


def base(count, seed=SEED):
    rng = random.Random(seed)
    for _ in range(count):
        text = base_text(rng)
        assert not any(name in text for name in OWNER_NAMES), text
        yield text


def owner(train, valid, seed=SEED):
    """(train, valid): records without repetition, in the order they were drawn."""
    rng, seen = random.Random(seed), {}
    while len(seen) < train + valid:
        seen.setdefault(owner_text(rng))
    texts = list(seen)
    return texts[:train], texts[train:]


def main():
    (HERE / "data").mkdir(exist_ok=True)
    for name, texts in zip(("train", "valid"), owner(TRAIN, VALID)):
        path = HERE / "data" / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
        print(f"{path.name}: {len(texts)} records, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
