//! The words of generated names: short, lower case, and inoffensive in a URL.

pub(crate) const ADJECTIVES: [&str; 72] = [
    "able", "airy", "amber", "apt", "azure", "bold", "brave", "breezy", "bright", "brisk", "calm", "cheery", "civic",
    "clear", "clever", "cosmic", "cosy", "crisp", "deft", "dewy", "eager", "early", "easy", "fair", "fancy", "fine",
    "fleet", "fond", "fresh", "gentle", "glad", "golden", "grand", "green", "happy", "hardy", "honest", "humble",
    "jolly", "keen", "kind", "lively", "loyal", "lucky", "lunar", "mellow", "merry", "mild", "modest", "neat",
    "nimble", "noble", "polite", "proud", "quick", "quiet", "rapid", "ready", "robust", "serene", "sharp", "silver",
    "smooth", "solid", "steady", "sunny", "swift", "tidy", "vivid", "warm", "wise", "witty",
];

pub(crate) const NOUNS: [&str; 72] = [
    "acorn", "anchor", "apple", "arch", "aspen", "badge", "barn", "basin", "bay", "beacon", "birch", "bloom", "breeze",
    "bridge", "brook", "canyon", "cedar", "cliff", "cloud", "clover", "coast", "comet", "coral", "cove", "creek",
    "dawn", "delta", "dune", "elm", "falcon", "fern", "field", "fjord", "forest", "garden", "glade", "grove", "harbor",
    "hazel", "heron", "hill", "island", "lagoon", "lake", "lark", "leaf", "maple", "meadow", "mesa", "moon", "oak",
    "ocean", "orchid", "otter", "peak", "pebble", "pine", "planet", "pond", "prairie", "reef", "ridge", "river",
    "robin", "sky", "spring", "star", "stone", "summit", "valley", "willow", "wren",
];
