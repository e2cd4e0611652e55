"""Faults in the rules of `stepcredit/sandbox`."""

from tests.mutations.mutation import Mutation

_NAMES = "tests/sandbox/test_asserts.py::test_what_cannot_be_judged_is_refused_with_the_reason"

SANDBOX = [
    # Another name of the program may say what is right.
    Mutation(
        file="stepcredit/sandbox/asserts.py",
        old="    if len(set(origins)) > 1 or (",
        new="    if (",
        test=_NAMES,
    ),
    # Methods with arguments run in the jail, on whatever class the program returned.
    Mutation(
        file="stepcredit/sandbox/names.py",
        old="    return method not in METHODS and not node.args and not node.keywords",
        new="    return method not in METHODS",
        test=_NAMES,
    ),
    # Python's builtins are looked up among the program's names.
    Mutation(
        file="stepcredit/sandbox/names.py",
        old="    return name not in KNOWN_NAMES and not hasattr(builtins, name)",
        new="    return name not in KNOWN_NAMES",
        test=_NAMES,
    ),
    # `or` goes on behind the part that decided.
    Mutation(
        file="stepcredit/sandbox/asserts.py",
        old="            if bool(value) == decides:\n                break\n",
        new="            value = value\n",
        test="tests/sandbox/test_asserts.py::test_forms",
    ),
    # A deque equals the list of its items.
    Mutation(
        file="stepcredit/sandbox/wire.py",
        old="            return self.kind == other.kind and self.values == other.values\n"
        "        return False",
        new="            return self.kind == other.kind and self.values == other.values\n"
        "        return self.values == other",
        test="tests/sandbox/test_wire.py::test_ranges_and_deques_compare_by_their_items",
    ),
    # A program's own predicate says whether its answer is right.
    Mutation(
        file="stepcredit/sandbox/names.py",
        old="    return any(answers) and not all(answers)",
        new="    return False",
        test=_NAMES,
    ),
    # Only the outermost items of a sequence count when it is repeated.
    Mutation(
        file="stepcredit/sandbox/host_operations.py",
        old="            if _weight(sequence) * count > MAX_ITEMS:",
        new="            if len(sequence) * count > MAX_ITEMS:",
        test="tests/sandbox/test_asserts.py::test_values_from_the_jail_cannot_make_the_host_work",
    ),
    # The crowds of nested sets do not multiply.
    Mutation(
        file="stepcredit/sandbox/wire.py",
        old="    return max((counts.get(hash(part), 1) * _crowd(part) for part in value), default=1)",
        new="    return 1",
        test="tests/sandbox/test_wire.py::test_sets_of_sets_of_one_hash_are_refused_at_once",
    ),
]
