package programs

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// lexer splits a command line into words and operators.
type lexer struct {
	words  []string
	word   strings.Builder
	inWord bool
}

func (l *lexer) end() {
	if l.inWord {
		l.words = append(l.words, l.word.String())
		l.word.Reset()
		l.inWord = false
	}
}

func (l *lexer) add(text string) {
	l.word.WriteString(text)
	l.inWord = true
}

var errQuote = errors.New("a quote is not closed")

// split cuts a script into words; ; && and || are words of their own.
func split(text string) ([]string, error) {
	l := &lexer{}
	for i := 0; i < len(text); i++ {
		var err error
		switch c := text[i]; c {
		case ' ', '\t':
			l.end()
		case '\n', ';':
			l.end()
			l.words = append(l.words, ";")
		case '\'':
			i, err = l.single(text, i)
		case '"':
			i, err = l.double(text, i)
		case '\\':
			if i++; i < len(text) {
				l.add(text[i : i+1])
			}
		case '$':
			i = l.variable(text, i)
		case '&', '|':
			if i+1 >= len(text) || text[i+1] != c {
				return nil, fmt.Errorf("%q is not known to this shell; it has ; && || only", string(c))
			}
			l.end()
			l.words = append(l.words, text[i:i+2])
			i++
		case '<', '>', '`', '(', ')':
			return nil, fmt.Errorf("%q is not known to this shell; it has ; && || only", string(c))
		default:
			l.add(text[i : i+1])
		}
		if err != nil {
			return nil, err
		}
	}
	l.end()
	return l.words, nil
}

func (l *lexer) single(text string, at int) (int, error) {
	end := strings.IndexByte(text[at+1:], '\'')
	if end < 0 {
		return 0, errQuote
	}
	l.add(text[at+1 : at+1+end])
	return at + 1 + end, nil
}

func (l *lexer) double(text string, at int) (int, error) {
	l.add("")
	for i := at + 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return i, nil
		case '$':
			i = l.variable(text, i)
		case '\\':
			if i+1 < len(text) {
				i++
			}
			l.add(text[i : i+1])
		default:
			l.add(text[i : i+1])
		}
	}
	return 0, errQuote
}

// variable replaces $NAME or ${NAME} and returns where it ends.
func (l *lexer) variable(text string, at int) int {
	rest := text[at+1:]
	if strings.HasPrefix(rest, "{") {
		if end := strings.IndexByte(rest, '}'); end > 0 {
			l.add(os.Getenv(rest[1:end]))
			return at + 1 + end
		}
	}
	n := 0
	for n < len(rest) && (rest[n] == '_' || rest[n] >= '0' && rest[n] <= '9' || rest[n]|0x20 >= 'a' && rest[n]|0x20 <= 'z') {
		n++
	}
	if n == 0 {
		l.add("$")
		return at
	}
	l.add(os.Getenv(rest[:n]))
	return at + n
}
