"""What users get wrong: a change or a command, then the place, the value and the fix named."""

BASE = """
name = "small"
seeds = [0]
metrics = ["mse"]
[task]
model = "lenet"
dataset = "shapes"
split = "train[:12]"
heldout_rows = 4
[auxiliary]
split = "public"
rows = 8
[federation]
engine = "in-process"
clients = 2
[capture]
rounds = [1]
[server_knows]
labels = true
[attack_stage]
workers = 1
[sweep]
"federation.learning_rate" = [0.1, 0.2]
[[defenses]]
name = "none"
[[defenses]]
name = "gaussian_noise"
std = 0.01
[[defenses]]
chain = [{ name = "prune", fraction = 0.5 }, { name = "sign" }]
[[attacks]]
name = "prior_only"
"""
TEXT = 'name = "text"\n[task]\nmodel = "tiny-bert"\ndataset = "sentences"\n'

# Changes of the experiment above -> place, value, fix.
OPTIONS: list[tuple[str, str, str, str]] = [
    # no such option
    ("nam=x", "nam", "", "Did you mean 'name'?"),
    ("task.modle=lenet", "task.modle", "", "Did you mean 'model'?"),
    ("federation.roundss=3", "federation.roundss", "", "Did you mean 'rounds'?"),
    ("federation.=3", "federation.", "", "Known: accumulation, "),
    ("task.filter.sentence=true", "task.filter.sentence", "", "Did you mean 'sentences'?"),
    ("defenses.0.std=1", "defenses[0].std", "none has no such", "Known: nothing."),
    ("defenses.1.stdd=1", "defenses[1].stdd", "gaussian_noise", "Did you mean 'std'?"),
    ("defenses.1.name=noise", "defenses[1].name", "'noise'", "Did you mean 'none'?"),
    ("defenses.2.nam=sign", "defenses[2]", "'nam': 'sign'", "Write chain = [{ name = "),
    ("defenses.2.chain.0.frac=1", "defenses[2].chain[0].frac", "prune", "Did you mean 'fraction'?"),
    ("attacks.0.name=prior", "attacks[0].name", "'prior'", "Did you mean 'prior_only'?"),
    ('metrics=["psnrr"]', "metrics[0]", "'psnrr'", "Did you mean 'psnr'?"),
    ('sweep={"federation.roundss"=[1]}', "federation.roundss", "", "Did you mean 'rounds'?"),
    ('sweep={"seeds"=[1, 2]}', "sweep.seeds", "only options of task", "or seeds, list several"),
    ('sweep={"federation"=[1, 2]}', "sweep.federation", "only options of task", "instead."),
    ('suite=["quickstart"]', "suite", "no such option", "Known: attack_stage, "),
    # a wrong type
    ("name=3", "name", "3 does not fit", "Write text in quotes."),
    ("name=2026-01-31", "name", "2026-01-31 is a date", "Quote it to make it text"),
    ("seeds=0", "seeds", "0 does not fit", "Write a list."),
    ("seeds=[true]", "seeds[0]", "true does not fit", "Write a whole number."),
    ("task=3", "task", "3 does not fit", "Write a table."),
    ('federation.rounds="three"', "federation.rounds", '"three"', "Write a whole number."),
    ("federation.rounds=true", "federation.rounds", "true does", "Write a whole number."),
    ("federation.train_mode=1", "federation.train_mode", "1 does", "Write true or false."),
    ("federation.learning_rate=nan", "federation.learning_rate", "nan", "Write a finite one."),
    ('defenses=["none"]', "defenses[0]", '"none" does not fit', "Write a table."),
    (
        'defenses=[{chain=["sign"]}]',
        "defenses[0].chain[0]",
        "'sign' is not a table",
        "Write { name ",
    ),
    ("defenses.1.std=true", "defenses[1].std", "true does not fit", "Write a number."),
    ('sweep={"federation.rounds"=3}', "sweep.federation.rounds", "3 does", "Write a list."),
    (
        "sweep.federation.rounds=[1]",
        "sweep.federation.rounds",
        "must be quoted",
        'Write "federation.rou',
    ),
    ('sweep={"task.model"=[1]}', "task.model", "1 does not fit", "Write text in quotes."),
    # an impossible value
    ('name="a/b"', "name", '"a/b" does not fit', "use at most 80 letters, digits"),
    ("seeds=[-1]", "seeds", "[-1] does not fit", "write 0 or more."),
    ("seeds=[]", "seeds", "[] does not fit", "the list is empty"),
    ("seeds=[0, 0]", "seeds", "[0, 0] does not fit", "remove one."),
    (f"seeds=[{2**64}]", "seeds[0]", str(2**64), "Write a smaller number."),
    ('task.kind="images"', "task.kind", "'images'", "Known: auto, image-classification, "),
    ("task.model=", "task.model", '"" does not fit', "at least 1 character."),
    ("task.filter.tokens_below=-1", "task.filter.tokens_below", "-1 does", "Write a number great"),
    ("federation.engine=rays", "federation.engine", '"rays"', "Write 'ray' or 'in-process'."),
    ("federation.rounds=0", "federation.rounds", "0 does", "Write a number greater than or "),
    ("federation.participation=1.5", "federation.participation", "1.5", "Write a number less "),
    ("federation.strategy=fedadam", "federation", "'fedadam'", "set protocol = 'fedavg'"),
    (
        "capture.rounds=[2]",
        "capture.rounds",
        "2 is out of range",
        "numbered 1 to 1. Choose among these.",
    ),
    (
        "capture.clients=[2]",
        "capture.clients",
        "2 is out of range",
        "numbered 0 to 1. Choose among these.",
    ),
    ("defenses=[]", "defenses", "[] does not fit", "the list is empty"),
    ("defenses=[{}]", "defenses[0].name", "is missing", "Known: ats, censor, clip, dp_client, "),
    ("defenses=[{chain=[]}]", "defenses[0]", "{'chain': []}", "Write chain = [{ name = "),
    ('defenses=[{name="prune"}]', "defenses[0].fraction", "is missing", "Add it."),
    ("defenses.1.std=-1", "defenses[1].std", "-1 does", "Write a number greater than or equal "),
    ("defenses.2.chain.0.fraction=1.5", "defenses[2].chain[0].fraction", "1.5", "less than 1."),
    ("defenses.2.chain.1.stage=server", "defenses[2].chain[1].stage", '"server"', "'client'."),
    (
        'defenses=[{chain=[{name="sign"}, {name="prune", fraction=0.5, stage="sample"}]}]',
        "defenses[0].chain[1]",
        "'prune' changes single gradients",
        "List it first, or set its stage to 'client'.",
    ),
    ('defenses=[{name="none"}, {name="none"}]', "defenses", "appears twice", "remove one."),
    (
        'defenses=[{name="sign"}, {name="sign", stage="client"}]',
        "defenses[1]",
        "sign with these options is already defenses[0]",
        "Remove one.",
    ),
    ('attacks=[{name="dlg"}, {name="dlg"}]', "attacks[1]", "stands there twice", "Remove one."),
    ('metrics=["mse", "mse"]', "metrics", "appears twice", "remove one."),
    ('sweep={"federation.rounds"=[]}', "sweep.federation.rounds", "is empty", "Add one."),
    ('sweep={"federation.rounds"=[1, 1]}', "sweep.federation.rounds", "1 appears", "Remove one."),
    (
        'sweep={"federation.engine"=["ray", "in-process"]}',
        "sweep",
        "identical",
        "change the captures",
    ),
    (
        'sweep={"federation.rounds.x"=[1]}',
        "sweep.federation.rounds.x",
        "a value",
        "Correct the key",
    ),
    # --set itself
    ("federation.rounds", "--set 'federation.rounds'", "expected key=value", "federation.rounds=5"),
    ("=3", "--set '=3'", "expected key=value", "e.g. federation.rounds=5."),
    ("attacks.1.name=dlg", "--set attacks.1.name", "'1' does not index", "Count from 0."),
    ("attacks.x.name=dlg", "--set attacks.x.name", "'x' does not index", "Count from 0."),
    ("name.x=3", "--set name.x", "'name' is a value", "Correct the key."),
    # rows, models and what does not go together
    ("task.split=tain", "shapes", "'tain'", "Its splits are train, test, public."),
    ("task.split=train[5:5]", "shapes", "'train[5:5]' holds no row", "choose a slice within them."),
    ("task.split=train[a:b]", "shapes", "'train[a:b]'", "Write it like 'train', "),
    ("auxiliary.split=train", "auxiliary.split", "row 0 of shapes 'train'", "Use 'train[12:]'."),
    ("task.heldout_split=train", "task.heldout_split", "row 0 of shapes", "Use 'train[12:]'."),
    ("task.dataset=sentences", "sentences", "it holds texts", "Choose a data set of images, "),
    ("task.model=tiny-bert", "shapes", "it holds images", "Choose a data set of texts, "),
    ("task.filter.sentences=true", "task.filter", "'lenet' takes images", "Leave it out."),
    ("task.model=lenett", "task.model", "'lenett'", "Did you mean 'lenet'?"),
    (
        "task.model=no/such",
        "task.model",
        "'no/such' is neither a built-in",
        "Correct the name, or put ",
    ),
    ("task.dataset=no/such", "no/such", "the hub cannot be reached", "Correct the name, put a "),
    ("task.model=./no", "./no", "no such folder", "Correct the path."),
    ("task.dataset=./no", "./no", "no such folder", "Correct the path."),
    ("task.kind=language-modelling", "task.kind", "'lenet'", "Set 'image-classification', "),
    ("task.input_column=image", "shapes", "no column 'image'", "Leave input_column and "),
    ("task.weights=pretrained", "task.weights", "the built-in 'lenet'", "Set 'random', or "),
    ("task.weights=randon", "task.weights", "'randon' is not known", "Write 'auto', 'random', "),
    ("task.weights=no@1", "task.weights", "'no' holds no captures", "Name the folder of a "),
    ("task.weights=runs/more@1", "task.weights", "no run 'runs/more' yet", "Run fedsim run more f"),
    ("federation.clients=13", "federation.clients", "12 private rows", "Use at most 12 clients, "),
    ("federation.batch_size=7", "federation.batch_size", "7 is more rows", "Lower it, or use "),
    (
        'defenses=[{name="freeze_embeddings"}]',
        "freeze_embeddings.word",
        "LeNet has no word embeddings",
        "Choose a text model",
    ),
    ('metrics=["bleu"]', "metrics[0]", "'bleu' measures texts", "Remove it."),
]

# Other commands -> place, value, fix.
COMMANDS: list[tuple[str, str, str, str]] = [
    ("run no.toml", "no.toml", "does not exist", "Correct the path."),
    (
        "run quickstart-image",
        "'quickstart-image'",
        "not an experiment",
        "Did you mean 'quickstart-im",
    ),
    ("run note.txt", "note.txt", "must end in .toml", "Rename it."),
    ("run cut.toml", "cut.toml", "not valid TOML", "(at line 2, column 6). Correct the file."),
    ("run binary.toml", "binary.toml", "not valid TOML", "Correct the file."),
    ("run empty.toml", "name", "is missing", "Add it."),
    ("run suite-none.toml", "suite", "[] is not a list", "List their names or files."),
    ("run suite-lost.toml", "'vanished'", "is not an experiment", "Known: "),
    (
        "run suite-suite.toml",
        "suite",
        "'quickstart' is itself a suite",
        "List its experiments instead.",
    ),
    ("run suite-twice.toml", "suite", "['small', 'small']", "Rename one."),
    ("run suite-more.toml", "seeds", "a suite takes only", "Move other options into "),
    ("run suite-name.toml", "name", "3 does not fit", "Write text in quotes."),
    ("run stuff", "stuff", "no run folder", "Correct the path."),
    ("run base.toml --out stuff", "--out stuff", "no run", "Name another one."),
    ("run base.toml --out note.txt", "--out note.txt", "a file", "Name a folder."),
    ("run base.toml --out note.txt/x", "--out note.txt/x", "Not a directory", "Name another"),
    ("run text.toml --out run", "--out run", "the run of 'small'", "Name another folder."),
    ("run base.toml --seed x", "Invalid value for '--seed'", "'x'", "See fedsim run --help."),
    ("run base.toml --seed -1", "seeds", "[-1] does not fit", "write 0 or more."),
    ("run base.toml --workers 0", "federation.client_workers", "0 does", "Write a number great"),
    ("run base.toml --set", "Option '--set' requires an argument", "", "See fedsim --help."),
    ("run base.toml --rounds 3", "No such option '--rounds'", "", "See fedsim run --help."),
    (
        "run base.toml --clinets 3",
        "No such option '--clinets'",
        "",
        "Did you mean --set federation.clients=...?",
    ),
    ("run", "Missing argument", "RUN_OR_EXPERIMENT", "See fedsim run --help."),
    ("watch note.txt", "note.txt", "is a file", "Correct the path."),
    ("check vanished --max rouge1=1", "vanished", "no such folder", "Correct the path."),
    ("check new-run --max rouge1=1", "new-run", "version 99", "Use the fedsim that wrote it"),
    *(
        (f"{command} {option} nan", f"Invalid value for '{option}'", "nan", "no finite number")
        for command, option in (
            ("calibrate base.toml --hold psnr=18", "--sure"),
            ("seal run out", "--minutes"),
            ("audit run --claim epsilon=8", "--confidence"),
            ("attack run", "--budget"),
            ("run base.toml", "--gpus"),
            ("submit bundle out --guesses note.txt --name x", "--cpu-seconds"),
        )
    ),
    ("runn base.toml", "No such command 'runn'", "", "Did you mean 'run'? See fedsim --help."),
    ("run base.toml --gpus -1", "federation.client_gpus", "-1.0 does", "Write a number greater"),
    ("run base.toml --gpus 1.5", "federation.client_gpus", "1.5 is neither", "a whole number."),
    ("run base.toml --gpus 1", "federation.client_gpus", "torch finds 0", "--gpus 0 runs on the"),
    ("run run --gpus 1", "attack_stage.gpus", "torch finds 0", "--gpus 0 runs on the CPU."),
    ("describe lampp", "describe 'lampp'", "nothing of that name", "Did you mean 'lamp'?"),
    ("describe", "Missing argument", "NAME", "See fedsim describe --help."),
    ("list attack", "list 'attack'", "no such list", "Did you mean 'attacks'?"),
    ("attack base.toml", "runs/small/small.none.", "not simulated", "Run fedsim simulate base.to"),
    ("score base.toml", "runs/small/small.none.", "not simulated", "Run fedsim run base.toml"),
    ("score run", "run/small.none.", "not attacked", "Run fedsim run run to finish it."),
    ("report run", "run", "nothing is scored", "Run fedsim run run to finish it."),
    (
        "run run --set federation.rounds=2",
        "run",
        "fixed experiment",
        "Name the experiment instead.",
    ),
    ("show run --seed 1", "run", "fixed experiment", "Name the experiment instead."),
    ("attack lost-cell", "lost-cell/small.none.", "not simulated", "Run fedsim simulate lost-c"),
    ("doctor lost-cell", "lost-cell/small.none.", "not simulated", "Run fedsim simulate lost-c"),
    ("run cut-run", "cut-run/experiment.toml", "not valid TOML", "Correct the file."),
    ("run wrong-run", "wrong-run/experiment.toml", "0 does not fit", "Write a number greater "),
    ("run other-run", "other-run/experiment.toml", "cut or altered", "Restore it, or run the "),
    ("run new-run", "new-run", "version 99, and", "Use the fedsim that wrote it, "),
    ("run text.toml --set task.model=models/words", "task.model", "models/words' has", "tokenizer"),
    ("run text.toml --set task.model=models/cut", "task.model", "models/cut", "Name a folder as "),
    ("run text.toml --set task.model=models/mamba", "task.model", "'mamba'", "choose another"),
    ("run text.toml --set task.model=models/bare", "task.weights", "'models/bare'", "= 'random'"),
    ("run text.toml --set task.max_length=999", "task.max_length", "got 999", "Set 128 or less."),
    ("run text.toml --set task.dataset=numbers", "numbers", "no text column", "Choose a data set"),
    ("run text.toml --set task.dataset=note.txt", "note.txt", "is a file", "Name the folder"),
    ("run text.toml --set task.dataset=moods", "task.label_column", "moods", "'text' or 'mood'"),
    (
        "run text.toml --set task.dataset=moods --set task.label_column=score",
        "moods",
        "'score' does not hold classes",
        "Its columns are text, mood, score.",
    ),
    (
        "run text.toml --set task.dataset=moods --set task.input_column=word",
        "moods",
        "no column 'word'",
        "Its columns are text, mood, score.",
    ),
    (
        "run base.toml --set federation.partition=by-label --set federation.classes_per_client=9",
        "federation.classes_per_client",
        "9 is more than the 6 classes",
        "Use at most 6.",
    ),
    (
        "run base.toml --set federation.protocol=fedavg --set federation.client_rows=7",
        "federation.client_rows",
        "7 is more than any client has (6 rows)",
        "Lower it, or use fewer clients",
    ),
    (
        "run base.toml --set federation.clients=9 --set federation.partition=dirichlet "
        "--set federation.alpha=0.001",
        "federation.alpha",
        "with 0.001, some of the 9 clients",
        "Use a larger alpha, ",
    ),
]
