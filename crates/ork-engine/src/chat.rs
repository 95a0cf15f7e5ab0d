// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model's own chat template, a Jinja program in the model file.

use minijinja::{Environment, ErrorKind, context};

use crate::error::EngineError;
use crate::model::ChatMessage;

/// Texts of the vocabulary's special tokens, which templates may name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpecialTexts {
    pub(crate) begin: String,
    pub(crate) end: String,
    /// Whether tokenising puts the start token in front by itself.
    pub(crate) begin_is_added: bool,
}

/// Messages as the model will read them, with the assistant's turn opened.
///
/// Templates are written for Python's Jinja as Hugging Face sets it up: blocks are trimmed, Python's string methods
/// exist, and `raise_exception` refuses a conversation.
pub(crate) fn render(
    template: &str,
    messages: &[ChatMessage],
    special: &SpecialTexts,
) -> Result<String, EngineError> {
    let fail = |error: &minijinja::Error| EngineError::ChatTemplate {
        why: error.detail().map_or_else(|| error.to_string(), str::to_owned),
    };
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template("chat", template).map_err(|error| fail(&error))?;
    let chat = environment.get_template("chat").map_err(|error| fail(&error))?;
    let text = chat
        .render(context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => special.begin,
            eos_token => special.end,
        })
        .map_err(|error| fail(&error))?;
    // Two start tokens would be one too many.
    let text = match text.strip_prefix(&special.begin) {
        Some(rest) if special.begin_is_added && !special.begin.is_empty() => rest.to_owned(),
        _ => text,
    };
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(begin_is_added: bool) -> SpecialTexts {
        SpecialTexts { begin: "<s>".into(), end: "</s>".into(), begin_is_added }
    }

    #[test]
    fn a_template_in_the_style_of_llama_2() {
        let template = "{{ bos_token }}{% for m in messages %}\n    {% if m['role'] == 'user' %}\n\
                        [INST] {{ m['content'].strip() }} [/INST]{% else %}{{ m.content + eos_token }}{% endif %}\n\
                        {% endfor %}";
        let messages = [
            ChatMessage::user(" hi "),
            ChatMessage { role: "assistant".into(), content: "hello".into() },
            ChatMessage::user("bye"),
        ];
        let text = render(template, &messages, &special(false)).unwrap();
        assert_eq!(text, "<s>[INST] hi [/INST]hello</s>[INST] bye [/INST]");
        assert_eq!(render(template, &messages, &special(true)).unwrap(), text[3..]);
    }

    #[test]
    fn a_default_system_message_comes_from_the_template() {
        let template = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
                        {{ '<|system|>be kind\n' }}{% endif %}{{ '<|' + message['role'] + '|>' + message['content'] }}\
                        {% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
        let text = render(template, &[ChatMessage::user("hi")], &special(true)).unwrap();
        assert_eq!(text, "<|system|>be kind\n<|user|>hi<|assistant|>");
    }

    #[test]
    fn refusals_and_broken_templates_are_errors() {
        let why = |template: &str| match render(template, &[ChatMessage::user("hi")], &special(true)) {
            Err(EngineError::ChatTemplate { why }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("{{ raise_exception('roles must alternate') }}"), "roles must alternate");
        assert!(!why("{% for %}").is_empty());
        assert!(why("{{ messages[0].content.no_such_method() }}").contains("no_such_method"));
    }
}
