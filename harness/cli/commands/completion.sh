# @shell@ completion of run.py; load it with: eval "$(python run.py completion @shell@)"
@head@_attnboard() {
  local cur=${COMP_WORDS[COMP_CWORD]} root word=run w
  for w in "${COMP_WORDS[@]}"; do
    case "$w" in */run.py|run.py|*/attnboard|attnboard) root=$w;; esac
  done
  case "$root" in
    "") return 0;;
    *run.py) root=$(dirname "$root");;
    *) root=$PWD; until [ "$root" = / ] || [ -f "$root/@mark@" ]; do root=$(dirname "$root"); done;;
  esac
  for w in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case " @commands@ " in *" $w "*) word=$w; break;; esac
  done
  local prev=${COMP_WORDS[COMP_CWORD-1]} words=""
  case "$prev" in
    --submission|-s|show|history|compare|explain|verify)
      words="$(_attnboard_names "$root" submissions) $(_attnboard_names "$root" baselines) all";;
    --baselines|--against) words="$(_attnboard_names "$root" baselines) all none";;
    --suite) words="$(_attnboard_names "$root" configs | sed 's/\.yaml//g')";;
    --template) words="triton cuda gluon";;
    --causal) words="true false both";;
    --dtype) words="fp16 bf16";;
    completion) words="bash zsh";;
    *) case "$word" in
@cases@
      esac
      case "$prev" in */run.py|run.py|*/attnboard|attnboard)
        words="@commands@ $(_attnboard_names "$root" submissions) $words";; esac;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
# compgen expands its words as a shell does: a name of other signs would be run
_attnboard_names() {
  local d w
  for d in "$1" @home@; do (cd "$d/$2" 2>/dev/null && for w in *; do case "$w" in
    *[!A-Za-z0-9_.-]*) ;; *) echo "$w";; esac; done); done
}
complete -o default -F _attnboard run.py ./run.py attnboard python python3
